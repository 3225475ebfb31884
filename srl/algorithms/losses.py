"""Losses: pure functions of tensors of equal shape, row by row, and means over the rows that count.

A loss per row and its mean are kept apart, because which rows count differs: valid None means that all of them do.
Must not know about policies, batches or optimizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

if TYPE_CHECKING:
    from srl.algorithms.base import Moments


def masked(x: Tensor, valid: Tensor | None) -> Tensor:
    """The tensor with 0 on the rows that do not count, so that no infinity there reaches a later gradient."""
    return x if valid is None else torch.where(valid, x, 0.0)


def masked_mean(x: Tensor, valid: Tensor | None) -> Tensor:
    """Mean over the rows that count; 0 when none does."""
    return x.mean() if valid is None else masked(x, valid).sum() / valid.sum().clamp(min=1)


def normalised(x: Tensor, valid: Tensor, moments: Moments | None = None) -> Tensor:
    """The tensor shifted and scaled to mean 0 and standard deviation 1 over the valid rows, 0 on the others."""
    if moments is None:
        std, mean = torch.std_mean(x[valid], correction=0)
    else:
        _, mean, var = moments(x[valid])
        std, mean = var.sqrt().to(x), mean.to(x)
    return masked((x - mean) / (std + 1e-8), valid)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float, dual_clip: float | None = None) -> Tensor:
    """PPO's pessimistic policy loss: -min(ratio * advantage, clamp(ratio, 1 - clip, 1 + clip) * advantage).

    With dual_clip (Ye et al., 2020) the loss of a row with a negative advantage is at most -dual_clip * advantage.
    """
    gain = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    if dual_clip is not None:
        gain = torch.where(advantage < 0, torch.maximum(gain, dual_clip * advantage), gain)
    return -gain


def value_error(value: Tensor, target: Tensor, shape: str = "mse") -> Tensor:
    """The squared error, or for shape "huber" twice the Huber loss: the same up to an error of 1, linear beyond."""
    if shape == "huber":
        return 2.0 * huber_loss(value, target, reduction="none")
    return (value - target).square()


def clipped_value_error(value: Tensor, old_value: Tensor, target: Tensor, clip: float, shape: str = "mse") -> Tensor:
    """The larger of the errors of the value and of the value held within clip of the old one."""
    near = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(value_error(value, target, shape), value_error(near, target, shape))


def kl_estimate(log_ratio: Tensor) -> Tensor:
    """Estimate of KL(old || new), row by row, from log(new / old): unbiased and never negative (Schulman's k3)."""
    return torch.expm1(log_ratio) - log_ratio


def outside(ratio: Tensor, clip: float) -> Tensor:
    """1.0 for each row whose ratio is further than clip from 1."""
    return ((ratio - 1.0).abs() > clip).float()
