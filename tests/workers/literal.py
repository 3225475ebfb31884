"""What an actor should write, said slowly: one environment, one row at a time, and plain lists."""

import numpy as np

from srl.envs.fake import Counting
from srl.streams.base import Shapes
from srl.tree import Spec

REAL = Spec((), "float32")
SHAPES = Shapes(
    obs=Spec((2,), "float32"),
    action=Spec((), "int64", "discrete", (2,), (0,)),
    mask=None,
    state={"h": Spec((), "float32")},
    extras={"log_prob": REAL, "value": REAL},
    noise=1,
    params={},
)


class Scripted:
    """A recurrent policy that needs no weights: it counts the rows since an episode's first."""

    def act(self, request):
        h = np.where(request["first"], 0, request["state"]["h"]) + 1
        total = request["obs"].sum(axis=1) + h
        return {
            "action": (total % 2).astype(np.int64),
            "state": {"h": h.astype(np.float32)},
            "log_prob": -total.astype(np.float32),
            "value": total.astype(np.float32),
        }


class ConstantWeights:
    """Weights that are always of one version."""

    version, steps = 3, 30

    def refresh(self):
        return False


def timeline(lengths, ends, count):
    """The first rows of one environment, each a dict; the action is ignored in the row after an episode's end."""
    env, policy, rows = Counting(lengths, ends), Scripted(), []
    obs, first, valid, state = env.reset(seed=0)[0], True, True, 0.0
    episode_return, episode_length = 0.0, 0
    for _ in range(count):
        request = {"obs": obs[None], "first": np.array([first]), "state": {"h": np.array([state])}}
        reply = policy.act(request)
        row = {"obs": obs, "first": first, "valid": valid, "state": state, "reward": 0.0}
        row |= {"terminated": False, "truncated": False, "episode_return": None, "episode_length": None}
        row |= {name: reply[name][0] for name in ("action", "log_prob", "value")}
        if valid:
            obs, row["reward"], row["terminated"], row["truncated"], _ = env.step(int(reply["action"][0]))
            episode_return, episode_length = episode_return + row["reward"], episode_length + 1
        else:
            obs, _ = env.reset()
        over = row["terminated"] or row["truncated"]
        if over:
            row |= {"episode_return": episode_return, "episode_length": episode_length}
            episode_return, episode_length = 0.0, 0
        rows.append(row)
        first, valid, state = not valid, not over, float(reply["state"]["h"][0])
    return rows
