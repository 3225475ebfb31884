"""Reward scaling: rewards divided by the running standard deviation of the discounted return.

One running return per column; a batch's columns go on where the last batch's ended, so the same environments must come
in the same order (otherwise the statistics are only approximate, which the learning bears). Must not know the losses.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from srl.algorithms.returns import discounted_returns

if TYPE_CHECKING:
    from srl.algorithms.base import Moments

LEAST_STD = 1e-4
"""Returns that vary less say nothing about the scale of rewards, which are then left alone."""


class RewardScale:
    """Keeps the moments of the discounted return over a run and divides rewards by its standard deviation."""

    def __init__(self, gamma: float, moments: Moments | None = None) -> None:
        self.gamma = gamma
        self._moments = moments
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self.carry: Tensor | None = None

    def __call__(self, reward: Tensor, ended: Tensor, valid: Tensor) -> Tensor:
        """Take a batch [T, B] into the statistics; its rewards, scaled."""
        if self.carry is None or self.carry.shape != reward.shape[1:]:
            self.carry = torch.zeros_like(reward[0])
        returns, self.carry = discounted_returns(reward, ended, valid, self.gamma, self.carry)
        self._take(returns[valid].double())
        std = math.sqrt(self.squares / max(self.count, 1))
        return reward / std if std > LEAST_STD else reward

    def _take(self, x: Tensor) -> None:
        """Merge the moments of x into the running ones (Chan et al., 1979), which loses no digits as count grows."""
        if len(x) == 0:
            return
        count, mean, squares = self._measured(x)
        total, shift = self.count + count, mean - self.mean
        self.squares += squares + shift**2 * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    def _measured(self, x: Tensor) -> tuple[int, float, float]:
        """Count, mean and squared distances from it, of all ranks where there are several."""
        if self._moments is None:
            mean = x.mean().item()
            return len(x), mean, (x - mean).square().sum().item()
        count, mean, var = (number.item() for number in self._moments(x))
        return int(count), mean, var * count

    def state_dict(self) -> dict[str, Any]:
        """The moments and the running returns."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares, "carry": self.carry}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]
        self.carry = state["carry"]
