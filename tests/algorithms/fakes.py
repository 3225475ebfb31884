"""Small true policies and batches to learn from, made of nothing but torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class Judged:
    """What evaluate gives."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


def categorical(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of actions and entropy."""
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, action[..., None]).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


class MLPPolicy:
    """A feedforward actor-critic with separate nets and one discrete action; keeps what it was told to observe."""

    def __init__(self, width: int = 8, inputs: int = 3, actions: int = 2, seed: int = 0, scale: float = 1.0) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.module = nn.ModuleDict({"pi": self._net(inputs, width, actions), "v": self._net(inputs, width, 1)})
        self.scale = scale
        self.observed: list[Tensor] = []
        self.targets: list[Tensor] = []

    @staticmethod
    def _net(inputs: int, width: int, outputs: int) -> nn.Module:
        hidden = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        return nn.Sequential(*hidden, nn.Linear(width, outputs))

    def evaluate(self, obs: Any, action: Any, mask: Any, first: Tensor, state: Any) -> Judged:
        log_prob, entropy = categorical(self.module["pi"](obs), action)
        return Judged(log_prob, entropy, self.module["v"](obs).squeeze(-1))

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        return self.module["v"](obs).squeeze(-1)

    def value_scale(self) -> Tensor:
        return torch.tensor(self.scale)

    def update_value_stats(self, targets: Tensor) -> None:
        self.targets.append(targets)

    def observe(self, obs: Any) -> None:
        self.observed.append(obs)


class RNNPolicy(MLPPolicy):
    """The same over a tanh recurrent cell."""

    def __init__(self, width: int = 8, inputs: int = 3, actions: int = 2, seed: int = 0) -> None:
        super().__init__(width, width, actions, seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed + 1)
            self.module["cell"] = nn.RNNCell(inputs, width)

    def unroll(self, obs: Tensor, first: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features [T, B, width] and the states before each row and after the last, [T + 1, B, width]."""
        states = [state]
        features = []
        for obs_t, first_t in zip(obs, first, strict=True):
            features.append(self.module["cell"](obs_t, torch.where(first_t[:, None], 0.0, states[-1])))
            states.append(features[-1])
        return torch.stack(features), torch.stack(states)

    def evaluate(self, obs: Any, action: Any, mask: Any, first: Tensor, state: Any) -> Judged:
        return super().evaluate(self.unroll(obs, first, state["h"])[0], action, mask, first, {})

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        return super().value(self.unroll(obs, first, state["h"])[0], first, {})


def flags(ends: Tensor, starts_reset: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """terminated, truncated, valid [T, B] and first [T+1, B] from 0..3 (none, terminated, truncated, both) per row.

    After a row that ends an episode comes a reset row, whatever ends says of it; starts_reset [B] makes row 0 one.
    """
    steps, columns = ends.shape
    terminated, truncated = torch.zeros(2, steps, columns, dtype=torch.bool)
    valid = torch.ones(steps, columns, dtype=torch.bool)
    first = torch.zeros(steps + 1, columns, dtype=torch.bool)
    reset = starts_reset
    for t in range(steps):
        valid[t] = ~reset
        first[t + 1] = reset
        terminated[t] = (ends[t] % 2 == 1) & ~reset
        truncated[t] = (ends[t] >= 2) & ~reset
        reset = terminated[t] | truncated[t]
    return terminated, truncated, valid, first


def batch_for(policy: MLPPolicy, steps: int, columns: int, chunk: int = 0, seed: int = 0, ends: float = 0.2) -> dict:
    """A random batch whose actions, log-probabilities, values and states are the policy's own."""
    generator = torch.Generator().manual_seed(seed)
    kind = torch.randint(1, 4, (steps, columns), generator=generator)
    kind = kind * (torch.rand(steps, columns, generator=generator) < ends)
    starts_reset = torch.rand(columns, generator=generator) < 0.3
    terminated, truncated, valid, first = flags(kind, starts_reset)
    batch = {
        "obs": torch.randn(steps + 1, columns, 3, generator=generator),
        "action": torch.randint(0, 2, (steps, columns), generator=generator),
        "reward": torch.randn(steps, columns, generator=generator) * valid,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
        "first": first,
    }
    state: Any = {}
    with torch.no_grad():
        if chunk:
            _, states = policy.unroll(batch["obs"], first, torch.randn(columns, 8, generator=generator))
            batch["state"] = {"h": states[:-1][::chunk]}
            state = {"h": states[0]}
        now = policy.evaluate(batch["obs"][:-1], batch["action"], None, first[:-1], state)
    return batch | {"log_prob": now.log_prob, "value": now.value}
