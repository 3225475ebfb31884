"""Running statistics: of observations, to feed networks evenly; of returns, to teach value heads evenly.

    RunningMoments           mean and variance of all rows ever seen (Chan's parallel formula)
    ObservationNormaliser    (x - mean) / std for every float leaf, clipped
    ValueHead, PopArtHead    features -> value in the units of the reward

Statistics are float64 buffers of the module, so they are published and checkpointed with the weights. This module must
not know when statistics are updated; that is the algorithm's to say.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from srl.models import config
from srl.models.base import Moments
from srl.models.encoders import orthogonal
from srl.models.outline import FLOATS
from srl.models.trees import at
from srl.tree import Spec, SpecTree, leaves, name_of, tree_map

CLIP = 10.0
"""Normalised observations stay within this many deviations."""

EPSILON = 1e-8
"""Keeps a constant observation from being divided by zero."""


def moments_here(rows: Tensor) -> tuple[int, Tensor, Tensor]:
    """Those of these rows alone."""
    return len(rows), rows.mean(0), rows.var(0, correction=0)


class RunningMoments(nn.Module):
    """Mean and variance of each element over all rows seen; 0 and 1 before the first."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows: Tensor, name: str, moments: Moments = moments_here) -> None:
        """Take rows [N, *shape] in; raises FloatingPointError, with the name, rather than keep what is not finite."""
        rows = rows.double()
        if len(rows) == 0:
            return
        n, mean, var = moments(rows)
        if not (mean.isfinite().all() and var.isfinite().all()):
            raise FloatingPointError(f"the observation {name!r} is not finite, so it cannot be normalised")
        total = self.count + n
        share = n / total
        apart = mean - self.mean
        self.var.copy_(self.var * (1 - share) + var * share + apart.square() * share * (1 - share))
        self.mean.add_(apart * share)
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        """The same rows with mean 0 and spread 1, clipped, as float32."""
        scale = (self.var + EPSILON).rsqrt().float()
        if x.dtype == torch.float64:
            # Large float64 numbers, such as times or positions, lose their differences when rounded first.
            return ((x - self.mean).float() * scale).clamp(-CLIP, CLIP)
        return ((x - self.mean.float()) * scale).clamp(-CLIP, CLIP)


class ObservationNormaliser(nn.Module):
    """Normalises the float leaves of an observation tree and passes the others on."""

    def __init__(self, obs_spec: SpecTree) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            RunningMoments(spec.shape) if spec.dtype in FLOATS else nn.Identity() for _, spec in leaves(obs_spec)
        )
        self.spec = obs_spec

    def update(self, obs: Any, moments: Moments = moments_here) -> None:
        """Take observations [N, ...] into the statistics."""
        for (path, _), part in zip(leaves(self.spec), self.parts, strict=True):
            if isinstance(part, RunningMoments):
                part.update(at(obs, path), name_of(path), moments)

    def forward(self, obs: Any) -> Any:
        """The same tree, its float leaves normalised."""
        parts = iter(self.parts)

        def one(spec: Spec, leaf: Tensor) -> Tensor:
            return next(parts)(leaf)

        return tree_map(one, self.spec, obs)


class ValueHead(nn.Module):
    """A linear layer whose output is the value itself."""

    scale: Tensor

    def __init__(self, features: int, gain: float) -> None:
        super().__init__()
        self.linear = orthogonal(nn.Linear(features, 1), gain)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Values [N] in the units of the reward."""
        return self.linear(features).squeeze(-1)

    def update(self, targets: Tensor, moments: Moments = moments_here) -> None:
        """There are no statistics to adapt."""


class PopArtHead(nn.Module):
    """A linear layer whose output is the value less its running mean, in units of its running spread.

    When the statistics move, the layer is rewritten so that every value stays what it was (van Hasselt et al., 2016).
    """

    mean: Tensor
    var: Tensor
    updates: Tensor

    def __init__(self, features: int, gain: float, settings: config.PopArt) -> None:
        super().__init__()
        self.settings = settings
        self.linear = orthogonal(nn.Linear(features, 1), gain)
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("var", torch.ones((), dtype=torch.float64))
        self.register_buffer("updates", torch.zeros((), dtype=torch.float64))

    @property
    def scale(self) -> Tensor:
        """The running spread."""
        return self.var.sqrt().clamp_min(self.settings.min_scale).float()

    def forward(self, features: Tensor) -> Tensor:
        """Values [N] in the units of the reward."""
        return self.linear(features).squeeze(-1) * self.scale + self.mean.float()

    @torch.no_grad()
    def update(self, targets: Tensor, moments: Moments = moments_here) -> None:
        """Move the statistics towards those of the targets and rewrite the layer so that no value changes."""
        targets = targets.flatten().double()
        if targets.numel() == 0:
            return
        if not targets.isfinite().all():
            raise FloatingPointError("the targets of the value are not finite")
        old_scale, old_mean = self.scale.double(), self.mean.clone()
        _, mean, var = moments(targets)
        self._move(mean, var)
        scale = self.scale.double()
        self.linear.weight.mul_(old_scale / scale)
        self.linear.bias.copy_((self.linear.bias * old_scale + old_mean - self.mean) / scale)

    def _move(self, mean: Tensor, var: Tensor) -> None:
        self.updates.add_(1)
        rate = (1 / self.updates).clamp_min(self.settings.rate)
        apart = mean - self.mean
        self.var.copy_(self.var * (1 - rate) + var * rate + apart.square() * rate * (1 - rate))
        self.mean.add_(apart * rate)
