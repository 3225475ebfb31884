"""The evaluator: an actor without a train edge, which plays whole episodes with one version when control asks.

    takes            gives                            waits for             unblocked by
    newest params    mean reward of a version         control's "evaluate"  control
                     the weights, when they are the best so far

The first `episodes` episodes to be started count, however long each takes: short episodes are not preferred.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from srl.errors import UserError
from srl.metrics import Clock
from srl.streams.base import Shapes, counted
from srl.streams.frames import Stacks
from srl.streams.inline import Acts, Weights
from srl.tree import index, zeros
from srl.workers.actor import Environments, texts_of
from srl.workers.base import Link


class Episodes:
    """The first so many episodes of a batch of environments, shared out evenly over its rows."""

    def __init__(self, rows: int, wanted: int) -> None:
        self._quota = np.full(rows, wanted // rows)
        self._quota[: wanted % rows] += 1
        self._return = np.zeros(rows)
        self._length = np.zeros(rows, int)
        self.returns: list[float] = []
        self.lengths: list[int] = []

    def add(self, reward: Any, over: Any, valid: Any, broken: Any) -> None:
        """Count one step of every row; an episode whose environment broke does not count."""
        self._return += reward
        self._length += valid
        for row in np.flatnonzero(over):
            if self._quota[row] > 0 and not broken[row]:
                self._quota[row] -= 1
                self.returns.append(float(self._return[row]))
                self.lengths.append(int(self._length[row]))
            self._return[row], self._length[row] = 0.0, 0

    @property
    def complete(self) -> bool:
        """Whether every row has played its share."""
        return not self._quota.any()


def play(policy: Acts, envs: Environments, shapes: Shapes, *, episodes: int, seed: int, explore: bool) -> Episodes:
    """Play so many episodes from fresh resets; the generator below, run to its end."""
    played = Episodes(envs.size, episodes)
    for _ in steps_of(policy, envs, shapes, played, seed=seed, explore=explore):
        pass
    return played


def steps_of(policy: Acts, envs: Environments, shapes: Shapes, played: Episodes, *, seed: int, explore: bool) -> Any:
    """Play until `played` is complete, yielding after each step."""
    rows = envs.size
    random = np.random.default_rng(seed)
    out: dict[str, Any] = {"obs": zeros(shapes.obs, rows), "reward": np.zeros(rows, np.float32)}
    out |= {name: np.zeros(rows, bool) for name in ("terminated", "truncated", "broken")}
    if envs.scored:
        out |= {"score": np.zeros(rows, np.float32), "game_over": np.zeros(rows, bool)}
    if shapes.mask is not None:
        out["mask"] = zeros(shapes.mask, rows)
    envs.reset(seed, out)
    stacks = Stacks(shapes.obs, rows)
    state, first, valid = zeros(shapes.state, rows), np.ones(rows, bool), np.ones(rows, bool)
    while not played.complete:
        request = {"obs": stacks.push(out["obs"], first), "first": first, "state": state}
        if "mask" in out:
            request["mask"] = out["mask"]
        if explore:
            request["noise"] = random.random((rows, shapes.noise), dtype=np.float32)
        reply = policy.act(request)
        envs.step(reply["action"], out)
        played.add(*counted(out), valid, out["broken"])
        state, first, valid = reply["state"], ~valid, ~(out["terminated"] | out["truncated"])
        yield index(out, 0)


class Evaluator:
    """Evaluates the newest version when asked, one environment step at a time."""

    def __init__(
        self,
        policy: Acts,
        weights: Weights,
        envs: Environments,
        shapes: Shapes,
        link: Link,
        *,
        episodes: int,
        explore: bool,
        seed: int,
        best: float,
        save_best: Callable[[dict[str, Any]], None],
    ) -> None:
        self.clock = Clock()
        self._policy = policy
        self._weights: Any = weights
        self._envs = envs
        self._shapes = shapes
        self._link = link
        self._episodes = episodes
        self._explore = explore
        self._seed = seed
        self._save_best = save_best
        self._best = best
        self._asked = False
        self._played = Episodes(envs.size, episodes)
        self._steps: Any = None

    def command(self, message: dict[str, Any]) -> None:
        """Evaluate, as soon as the evaluation under way is over."""
        if message["do"] != "evaluate":
            raise ValueError(f"an evaluator does not know how to {message['do']}")
        self._asked = True

    def step(self) -> bool:
        """One step of the evaluation under way."""
        if self._steps is None and self._asked:
            self._begin()
        if self._steps is None:
            return False
        for _ in self._steps:
            self.clock.lap("eval")
            return True
        self._report()
        return True

    def _begin(self) -> None:
        self._weights.refresh()
        if self._weights.version < 0:
            return  # nothing is published yet
        self._asked = False
        self._played = Episodes(self._envs.size, self._episodes)
        self._steps = steps_of(
            self._policy, self._envs, self._shapes, self._played, seed=self._seed, explore=self._explore
        )

    def _report(self) -> None:
        self._steps = None
        mean = float(np.mean(self._played.returns))
        result = {
            "version": self._weights.version,
            "steps": self._weights.steps,
            "mean_reward": mean,
            "std_reward": float(np.std(self._played.returns)),
            "mean_ep_length": float(np.mean(self._played.lengths)),
            "episodes": len(self._played.returns),
        }
        if texts := texts_of(self._envs):
            self._link.send({"kind": "faults", "texts": texts})
        best = mean > self._best
        if best:
            self._save(mean, result)
        self._link.send({"kind": "evaluation", "best": best, **result})

    def _save(self, mean: float, result: dict[str, Any]) -> None:
        try:
            self._save_best(result)
            self._best = mean
        except UserError as error:
            # The next one that is better may find room; until then the last best one is there.
            self._link.send({"kind": "warning", "text": str(error)})

    @property
    def waits(self) -> str:
        """What it waits for: to be asked."""
        return "wait-version"

    def fds(self) -> list[int]:
        """Only control's word starts an evaluation."""
        return []

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
