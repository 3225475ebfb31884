"""Distributions of actions: sampled by given uniform numbers, so that sampling is a pure function.

Each works on rows of elements: actions [N, elements], noise [N, elements] in [0, 1), log_prob and entropy [N].

    Categorical     inverse of the cumulative distribution at u
    Bernoulli       u < p
    Normal          mean + std * inverse normal distribution at u
    SquashedNormal  the same, squashed by tanh into bounds

They must not know about action spaces or networks. torch.distributions has the same ones, but it validates on every
call and samples from a global generator.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

SMALLEST_UNIFORM = 2.0**-24
"""Noise is kept this far from 0 and 1, where the inverse normal distribution is infinite; about 5.3 deviations."""

LARGEST_SQUASHED = 1 - 1e-6
"""Squashed actions count as no closer to their bounds than this, because float32 cannot tell them from the bound."""

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)

NODES = torch.linspace(-5, 5, 33)
"""Where, in deviations, a normal distribution is sampled to average over it.

Even spacing beats Gauss-Hermite here: entropies of squashed distributions are right to 1e-4 for spreads up to e and to
1e-2 for spreads up to e^2.
"""


class Distribution(Protocol):
    """One distribution for each row."""

    def mode(self) -> Tensor:
        """The most likely elements (of a squashed distribution: those of the one before squashing, squashed)."""
        ...

    def sample(self, noise: Tensor) -> Tensor:
        """Elements drawn by the noise."""
        ...

    def log_prob(self, action: Tensor) -> Tensor:
        """Log probability or density of the elements of a row together."""
        ...

    def entropy(self) -> Tensor:
        """Entropy of the elements of a row together."""
        ...


class Categorical:
    """Independent choices from logits [N, elements, choices]; forbidden ones have the least logit there is."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = logits.log_softmax(-1)

    def mode(self) -> Tensor:
        """The likeliest choices."""
        return self.log_probs.argmax(-1)

    def sample(self, noise: Tensor) -> Tensor:
        """The choices at which the cumulative distribution passes the noise."""
        cdf = self.log_probs.exp().cumsum(-1)
        # The sum may round to less than 1: noise above it takes the last choice that has any probability.
        passed = (cdf <= noise.unsqueeze(-1)) & (cdf < cdf[..., -1:])
        return passed.sum(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log probability of the choices of a row."""
        return self.log_probs.gather(-1, action.unsqueeze(-1)).sum((1, 2))

    def entropy(self) -> Tensor:
        """Entropy of the choices of a row."""
        return -(self.log_probs.exp() * self.log_probs).sum((1, 2))


class Bernoulli:
    """Independent bits from logits [N, elements]."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def mode(self) -> Tensor:
        """The likelier value of each bit."""
        return self.logits > 0

    def sample(self, noise: Tensor) -> Tensor:
        """Bits that are set where the noise is below their probability."""
        return noise < self.logits.sigmoid()

    def log_prob(self, action: Tensor) -> Tensor:
        """Log probability of the bits of a row."""
        return (action * self.logits - softplus(self.logits)).sum(1)

    def entropy(self) -> Tensor:
        """Entropy of the bits of a row."""
        return (softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(1)


class Normal:
    """Independent real numbers from mean [N, elements] and log_std [N, elements] or [elements]."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def mode(self) -> Tensor:
        """The means."""
        return self.mean

    def sample(self, noise: Tensor) -> Tensor:
        """The quantiles that the noise names."""
        noise = noise.clamp(SMALLEST_UNIFORM, 1 - SMALLEST_UNIFORM)
        return torch.addcmul(self.mean, self.log_std.exp(), torch.special.ndtri(noise))

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density of the numbers of a row."""
        z = (action.to(self.mean.dtype) - self.mean) * (-self.log_std).exp()
        return (-0.5 * z * z - self.log_std).sum(1) - self.mean.shape[1] * HALF_LOG_TAU

    def entropy(self) -> Tensor:
        """Entropy of the numbers of a row."""
        return self.log_std.expand_as(self.mean).sum(1) + self.mean.shape[1] * (0.5 + HALF_LOG_TAU)


class Squash(nn.Module):
    """The map centre + scale * tanh(x) from the real line into bounds, and what it does to densities."""

    low: Tensor
    high: Tensor
    centre: Tensor
    scale: Tensor
    log_scale: Tensor
    nodes: Tensor
    weights: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        constants = {
            "low": low,
            "high": high,
            "centre": (low + high) / 2,
            "scale": (high - low) / 2,
            "log_scale": ((high - low) / 2).log(),
            "nodes": NODES,
            "weights": (-0.5 * NODES.square()).softmax(0),
        }
        for name, constant in constants.items():
            self.register_buffer(name, constant, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The squashed numbers."""
        # Clamped because the last rounding may step over a bound.
        return torch.addcmul(self.centre, self.scale, x.tanh()).clamp(self.low, self.high)

    def inverse(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """The number that was squashed, and the log of the slope of the map there."""
        t = ((action - self.centre) / self.scale).clamp(-LARGEST_SQUASHED, LARGEST_SQUASHED)
        above, below = t.log1p(), (-t).log1p()
        return 0.5 * (above - below), above + below + self.log_scale

    def mean_log_slope(self, mean: Tensor, std: Tensor) -> Tensor:
        """The log of the slope averaged over a normal distribution, by quadrature."""
        x = mean.unsqueeze(-1) + std.unsqueeze(-1) * self.nodes
        # log(1 - tanh(x)^2), written so that it neither overflows nor loses digits.
        log_slope = 2 * (math.log(2) - x - softplus(-2 * x))
        return log_slope @ self.weights + self.log_scale


class SquashedNormal:
    """Independent numbers within bounds: a normal distribution seen through tanh."""

    def __init__(self, normal: Normal, squash: Squash) -> None:
        self.normal = normal
        self.squash = squash

    def mode(self) -> Tensor:
        """The means, squashed."""
        return self.squash(self.normal.mean)

    def sample(self, noise: Tensor) -> Tensor:
        """The quantiles that the noise names, squashed."""
        return self.squash(self.normal.sample(noise))

    def log_prob(self, action: Tensor) -> Tensor:
        """Log density of the squashed numbers of a row."""
        x, log_slope = self.squash.inverse(action.to(self.normal.mean.dtype))
        return self.normal.log_prob(x) - log_slope.sum(1)

    def entropy(self) -> Tensor:
        """Entropy of the squashed numbers of a row."""
        return self.normal.entropy() + self.squash.mean_log_slope(self.normal.mean, self.normal.log_std.exp()).sum(1)
