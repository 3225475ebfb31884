"""Both learners solve small worlds with known solutions, acting and learning in turn."""

import pytest
import torch

from srl.algorithms import IMPALA, PPO

from .fakes import MLPPolicy, RNNPolicy

LEARNERS = [
    PPO(learning_rate=0.01, minibatches=2),
    IMPALA(learning_rate=0.01),
    IMPALA(optimizer="rmsprop", learning_rate=0.003),
]


def act(policy, obs, first, state, generator):
    """Actions, log-probabilities, values and the next state of one row."""
    with torch.no_grad():
        following = state
        if isinstance(policy, RNNPolicy):
            following = {"h": policy.unroll(obs[None], first[None], state["h"])[1][-1]}
        zeros = torch.zeros(1, len(obs), dtype=torch.long)
        chosen = policy.evaluate(obs[None], zeros, None, first[None], state)
        action = (torch.rand(len(obs), generator=generator) > chosen.log_prob[0].exp()).long()
        now = policy.evaluate(obs[None], action[None], None, first[None], state)
    return action, now.log_prob[0], now.value[0], following


def play(policy, generator, length, chunk, steps=32, columns=8):
    """A batch of a world that shows a bit in an episode's first row and rewards it repeated in the last of length.

    With length 1 this is a contextual bandit; longer, it needs memory.
    """
    cue = torch.randint(0, 2, (steps + 1, columns), generator=generator)
    state = {"h": torch.zeros(columns, 8)} if chunk else {}
    rows = {name: [] for name in ("obs", "first", "action", "log_prob", "value", "reward", "terminated", "valid")}
    states = []
    period = length + 1
    for t in range(steps + 1):
        at = t % period
        bit = cue[t - at]
        obs = torch.zeros(columns, 3)
        obs[:, 2] = at == length - 1
        if at == 0:
            obs.scatter_(1, bit[:, None], 1.0)
        first = torch.full((columns,), at == 0)
        if t % (chunk or steps) == 0:
            states.append(state)
        rows["obs"].append(obs)
        rows["first"].append(first)
        if t < steps:
            action, log_prob, value, state = act(policy, obs, first, state, generator)
            last = at == length - 1
            rows["action"].append(action)
            rows["log_prob"].append(log_prob)
            rows["value"].append(value)
            rows["reward"].append((action == bit).float() * last)
            rows["terminated"].append(torch.full((columns,), last))
            rows["valid"].append(torch.full((columns,), at != length))
    batch = {name: torch.stack(values) for name, values in rows.items()}
    batch["truncated"] = torch.zeros_like(batch["terminated"])
    if chunk:
        batch["state"] = {"h": torch.stack([s["h"] for s in states])}
    return batch


def score(batch):
    """Mean reward of the rows that can earn one."""
    return batch["reward"][batch["terminated"]].mean().item()


@pytest.mark.parametrize("settings", LEARNERS, ids=["ppo", "impala-adam", "impala-rmsprop"])
@pytest.mark.parametrize(("kind", "length", "chunk"), [(MLPPolicy, 1, 0), (RNNPolicy, 3, 8)], ids=["bandit", "memory"])
def test_the_world_is_solved(settings, kind, length, chunk):
    policy = kind()
    learner = settings.build(policy)
    generator = torch.Generator().manual_seed(0)
    scores = []
    for _ in range(150):
        batch = play(policy, generator, length, chunk)
        scores.append(score(batch))
        learner.step(batch, 0.0)
        if min(scores[-3:]) > 0.9 and len(scores) > 3:
            return
    pytest.fail(f"scores ended at {scores[-5:]}")
