"""Heads: from features [N, features] to a distribution over the action tree.

    features -> one linear layer -> a slice for each leaf -> CategoricalHead | BernoulliHead | GaussianHead -> Joint

A leaf head turns its slice (and its mask, for choices) into a distribution of the leaf's elements; Joint puts the
leaves together. Heads must not know where features come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from srl.errors import UserError
from srl.models import config
from srl.models.distributions import Bernoulli, Categorical, Distribution, Normal, Squash, SquashedNormal
from srl.models.encoders import orthogonal
from srl.models.outline import head_widths, masked_paths
from srl.models.trees import at
from srl.tree import Path, Spec, SpecTree, leaves, name_of, tree_map


class CategoricalHead(nn.Module):
    """One or several independent choices, some of them perhaps forbidden by a mask."""

    slots: Tensor | None

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.elements = len(spec.n)
        self.choices = max(spec.n)
        inputs = sum(spec.n)
        if inputs == self.elements * self.choices:
            self.slots = None
        else:
            # Which logit each slot [elements, choices] takes; slots an element has no choice for take a forbidden one.
            slots = torch.full((self.elements, self.choices), inputs)
            start = 0
            for row, n in zip(slots, spec.n, strict=True):
                row[:n] = torch.arange(start, start + n)
                start += n
            self.register_buffer("slots", slots.flatten(), persistent=False)

    def forward(self, logits: Tensor, mask: Tensor | None) -> Categorical:
        """The distribution by logits and mask [N, inputs]."""
        if mask is not None:
            logits = logits.masked_fill(~mask, _least(logits))
        if self.slots is not None:
            logits = nn.functional.pad(logits, (0, 1), value=_least(logits))[:, self.slots]
        return Categorical(logits.view(-1, self.elements, self.choices))


def _least(logits: Tensor) -> float:
    return torch.finfo(logits.dtype).min


class BernoulliHead(nn.Module):
    """Independent bits."""

    def forward(self, logits: Tensor, mask: None) -> Bernoulli:
        """The distribution by logits [N, inputs]; bits have no mask."""
        return Bernoulli(logits)


class Bounded(torch.autograd.Function):
    """Clamp whose gradient passes wherever it leads back inside, so that no parameter gets stuck at a bound."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        """The clamped numbers."""
        ctx.save_for_backward(x)
        ctx.bounds = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        """The gradient, without what leads further outside."""
        (grad,), (x,) = grad_outputs, ctx.saved_tensors
        low, high = ctx.bounds
        # Descent moves against the gradient: above the upper bound only a positive gradient leads back.
        stuck = ((x > high) & (grad < 0)) | ((x < low) & (grad > 0))
        return grad.masked_fill(stuck, 0.0), None, None


class GaussianHead(nn.Module):
    """Real numbers, squashed into the bounds of their space when the settings say so."""

    def __init__(self, spec: Spec, name: str, settings: config.Gaussian) -> None:
        super().__init__()
        self.settings = settings
        self.log_std = None
        if not settings.state_dependent_std:
            self.log_std = nn.Parameter(torch.full((spec.size,), settings.init_log_std))
        self.squash = _squash(spec, name) if settings.squash else None

    def forward(self, inputs: Tensor, mask: None) -> Normal | SquashedNormal:
        """The distribution by means, and perhaps spreads, [N, inputs]; numbers have no mask."""
        if self.log_std is None:
            mean, raw = inputs.chunk(2, 1)
            raw = raw + self.settings.init_log_std
        else:
            mean, raw = inputs, self.log_std
        normal = Normal(mean, Bounded.apply(raw, self.settings.min_log_std, self.settings.max_log_std))
        return normal if self.squash is None else SquashedNormal(normal, self.squash)


def _squash(spec: Spec, name: str) -> Squash:
    low, high = (torch.tensor(bound, dtype=torch.float32).expand(spec.size).clone() for bound in (spec.low, spec.high))
    if not (low.isfinite() & high.isfinite() & (low < high)).all():
        raise UserError(
            f"Gaussian(squash=True) needs finite bounds low < high, which the action {name!r} does not have"
        )
    return Squash(low, high)


def _leaf_head(spec: Spec, name: str, gaussian: config.Gaussian) -> CategoricalHead | BernoulliHead | GaussianHead:
    if spec.kind == "discrete":
        return CategoricalHead(spec)
    if spec.kind == "binary":
        return BernoulliHead()
    return GaussianHead(spec, name, gaussian)


@dataclass(frozen=True, slots=True)
class Joint:
    """Independent distributions of the leaves of an action tree."""

    spec: SpecTree
    paths: list[Path]
    elements: list[int]
    parts: list[Distribution]

    def mode(self) -> Any:
        """The action tree of every leaf's mode."""
        return self._tree([part.mode() for part in self.parts])

    def sample(self, noise: Tensor) -> Any:
        """The action tree drawn by noise [N, sum of elements]."""
        pieces = noise.split_with_sizes(self.elements, 1)
        return self._tree([part.sample(piece) for part, piece in zip(self.parts, pieces, strict=True)])

    def log_prob(self, action: Any) -> Tensor:
        """Log probability [N] of an action tree."""
        rows = [at(action, path) for path in self.paths]
        terms = [
            part.log_prob(leaf.reshape(-1, elements))
            for part, leaf, elements in zip(self.parts, rows, self.elements, strict=True)
        ]
        return sum(terms[1:], terms[0])

    def entropy(self) -> Tensor:
        """Entropy [N] of all leaves together."""
        terms = [part.entropy() for part in self.parts]
        return sum(terms[1:], terms[0])

    def _tree(self, elements: list[Tensor]) -> Any:
        queue = iter(elements)

        def one(spec: Spec) -> Tensor:
            return next(queue).reshape(-1, *spec.shape).to(getattr(torch, spec.dtype))

        return tree_map(one, self.spec)


class ActionHead(nn.Module):
    """One linear layer for all leaves, and each leaf's head on its slice."""

    def __init__(
        self,
        features: int,
        action_spec: SpecTree,
        mask_spec: SpecTree | None,
        gaussian: config.Gaussian,
        gain: float,
    ) -> None:
        super().__init__()
        self.spec = action_spec
        self.inputs = head_widths(action_spec, gaussian)
        self.paths = [path for path, _ in leaves(action_spec)]
        parts = [_leaf_head(spec, name_of(path), gaussian) for path, spec in leaves(action_spec)]
        self.parts = nn.ModuleList(parts)
        self.masked = masked_paths(action_spec, mask_spec)
        self.elements = [spec.size for _, spec in leaves(action_spec)]
        self.noise = sum(self.elements)
        self.linear = orthogonal(nn.Linear(features, sum(self.inputs)), gain)

    def forward(self, features: Tensor, mask: Any) -> Joint:
        """The distribution of the action tree, by features [N, features] and mask tree."""
        slices = self.linear(features).split_with_sizes(self.inputs, 1)
        parts = [
            part(inputs, at(mask, path) if path in self.masked else None)
            for part, inputs, path in zip(self.parts, slices, self.paths, strict=True)
        ]
        return Joint(self.spec, self.paths, self.elements, parts)
