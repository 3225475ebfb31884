"""What all learners share: the two protocols, schedules, the weight update and the reading of stats.

    loss --backward--> gradients --(mean over ranks)--> clip --> optimizer --> weights
      +--> stats stay on the device until a pass over the batch is done, are read once, and must be finite

Must not know any single algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from srl.algorithms.adam import Adam
from srl.errors import UserError

ADAM_EPS = 1e-5
"""Larger than torch's 1e-8, as in the original PPO: tiny second moments early in a run would make huge steps."""
RMSPROP_DECAY = 0.99
"""As in the original IMPALA."""

Batch: TypeAlias = dict[str, Any]
Stats: TypeAlias = dict[str, Tensor]
Moments: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""Count, mean and variance of rows [N, ...], those of all ranks taken together, in float64."""
ROWS = "rows"
"""The entry of stats that says how many rows they and the loss are means over; only asked for among ranks."""


class Ranks(Protocol):
    """The trainers of one policy, as one of them sees the others: each learns from its own part of every batch.

    All of them make the same calls in the same order, and each gets the same answers, bit for bit.
    """

    @property
    def rank(self) -> int:
        """Which one this is; what is the same for all, only rank 0 has in its state_dict."""
        ...

    def mean(self, tensors: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
        """The means of these over the ranks, each rank's with its weight."""
        ...

    def moments(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and variance of the rows of all ranks."""
        ...


class Evaluation(Protocol):
    """What a policy says of the actions and observations of a batch, each [T, B]."""

    @property
    def log_prob(self) -> Tensor:
        """Log-probability of the action."""
        ...

    @property
    def entropy(self) -> Tensor:
        """Entropy of the distribution the action would be drawn from."""
        ...

    @property
    def value(self) -> Tensor:
        """Expected return, in units of the reward."""
        ...


class Policy(Protocol):
    """What a learner asks of a policy."""

    @property
    def module(self) -> nn.Module:
        """The parameters that learn."""
        ...

    def evaluate(self, obs: Any, action: Any, mask: Any, first: Tensor, state: Any) -> Evaluation:
        """Log-probability and entropy of actions, and values, with gradients; leading dimensions [T, B]."""
        ...

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        """Values alone."""
        ...

    def value_scale(self) -> Tensor:
        """The unit values are learned in."""
        ...

    def update_value_stats(self, targets: Tensor, moments: Moments = ...) -> None:
        """Take value targets into the statistics behind value_scale; outputs stay the same.

        What measures them over all ranks is only given where there are several; the same goes for `observe`.
        """
        ...

    def observe(self, obs: Any, moments: Moments = ...) -> None:
        """Take the float leaves of rows of observations into the statistics of the observation normaliser."""
        ...


class Learner(Protocol):
    """Turns batches into better weights of one policy."""

    def step(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from one batch; progress is the part of the run that is over."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that an exact continuation needs besides the policy's module."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        ...


def require_rows(batch: Batch) -> None:
    """Refuse a batch in which nothing happened."""
    if not batch["valid"].any():
        raise UserError("a batch has no valid row to learn from: use longer segments or more environments")


def linear(start: float, end: float | None, progress: float) -> float:
    """From start to end as progress goes from 0 to 1; start when there is no end."""
    return start if end is None else start + (end - start) * progress


class Update:
    """Makes weights follow a loss down: backward, clip, optimizer step, count."""

    def __init__(
        self, module: nn.Module, optimizer: str, max_grad_norm: float | None, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        if optimizer == "adam":
            self.optimizer: Any = Adam(self.parameters, ADAM_EPS)
        else:
            # The learning rate given here is never used: every step brings its own.
            self.optimizer = torch.optim.RMSprop(self.parameters, 0.0, alpha=RMSPROP_DECAY, eps=ADAM_EPS, foreach=True)
        self.max_grad_norm = math.inf if max_grad_norm is None else max_grad_norm
        self.count = 0

    def step(self, stats: Stats, learning_rate: float) -> Stats:
        """One step of the weights down the loss; the stats, with the gradient's norm before clipping, on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        torch.autograd.backward(stats["loss"])
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        stats = self.shared({name: value.detach() for name, value in stats.items()}, gradients)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm, foreach=True)
        self.optimizer.step()
        self.count += 1
        return stats | {"grad_norm": norm}

    def weight(self, x: Tensor, valid: Tensor | None) -> Stats:
        """What the stats of these rows must say to be shared; nothing where there is one trainer."""
        if self.ranks is None:
            return {}
        return {ROWS: x.new_full((), x.numel()) if valid is None else valid.sum().to(x)}

    def shared(self, stats: Stats, gradients: Sequence[Tensor]) -> Stats:
        """The stats of all ranks, as if one trainer had all their rows; the gradients become such in place."""
        if self.ranks is None:
            return stats
        rows = stats.pop(ROWS)
        means = self.ranks.mean([*gradients, *stats.values()], rows)
        for gradient, mean in zip(gradients, means, strict=False):
            gradient.copy_(mean)
        return dict(zip(stats, means[len(gradients) :], strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state and the number of steps made."""
        return {"optimizer": self.optimizer.state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.count = state["count"]


def read_stats(who: str, updates: list[Stats], count: int, batch: Batch) -> dict[str, float]:
    """The means over updates, the last of which was number count; FloatingPointError if one is not finite.

    Reads the device once. By then the weights have taken the bad step: a run goes on from a checkpoint, not from here.
    """
    names = list(updates[0])
    table = torch.stack([torch.stack(list(stats.values())) for stats in updates]).double().cpu().numpy()
    for number, row in enumerate(table, count - len(updates) + 1):
        for name, value in zip(names, row, strict=True):
            if not math.isfinite(value):
                cause = _not_finite(batch)
                raise FloatingPointError(f"{who}: {name} is {value} in update {number}{cause}")
    return {name: float(mean) for name, mean in zip(names, table.mean(0), strict=True)}


def mean_of(stats: Iterable[dict[str, float]]) -> dict[str, float]:
    """Key by key mean of dicts with the same keys."""
    rows = list(stats)
    return {name: math.fsum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _not_finite(batch: Batch) -> str:
    """Which of the numbers that came with the batch were already bad, to say where to look first."""
    valid = batch["valid"]
    bad = [name for name in ("reward", "value", "log_prob") if not batch[name][valid].isfinite().all()]
    return f"; the batch itself has a {' and '.join(bad)} that is not finite" if bad else ""
