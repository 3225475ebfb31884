"""What a policy is, to those who use one: actors ask it to act, algorithms to evaluate.

    act       request of numpy arrays [N, ...]   ->  reply of numpy arrays [N, ...]       no gradient, no own randomness
    evaluate  torch tensors [T, B, ...]          ->  log_prob, entropy, value [T, B]      with gradient

This module must not know how any policy is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor, nn

from srl.tree import SpecTree

Moments: TypeAlias = Callable[[Tensor], tuple[Any, Tensor, Tensor]]
"""Count, mean and variance of rows; where trainers share their statistics, of the rows of all of them."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy says today of actions taken earlier; all [T, B]."""

    log_prob: Tensor
    """Log probability (density, for continuous actions) of the action, summed over its elements."""
    entropy: Tensor
    """Entropy of the distribution the action would be drawn from, summed over its elements."""
    value: Tensor
    """Expected return from the observation on, in the units of the reward."""


class Policy(Protocol):
    """Acts, evaluates, and holds all that is learnt."""

    module: nn.Module
    """All that is published and checkpointed: parameters, and buffers such as running statistics."""
    state: SpecTree
    """Recurrent state of one row; {} when there is none."""
    extras: SpecTree
    """What act gives for each row besides action and state."""
    noise: int
    """Uniform random numbers that act consumes for each row: one per action element."""

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request: a pure function of weights and request, so that any copy of the policy may answer.

        Request: obs, first [N], state, mask (where the environment has masks), noise [N, noise] in [0, 1); without
        noise the most likely action is taken. Reply: action, state and the extras. Raises FloatingPointError when an
        extra is not finite.
        """
        ...

    def compile_act(self) -> None:
        """Compile what act computes; only asked of a policy whose experiment says so."""
        ...

    def evaluate(self, obs: Any, action: Any, mask: Any, first: Tensor, state: Any) -> Evaluation:
        """Judge actions [T, B, ...]; state is the one before row 0, zeroed wherever first is set."""
        ...

    def value(self, obs: Any, first: Tensor, state: Any) -> Tensor:
        """The values [T, B] alone."""
        ...

    def value_scale(self) -> Tensor:
        """Size of a typical value: what value losses are divided by; 1 when it is not adaptive."""
        ...

    def update_value_stats(self, targets: Tensor, moments: Moments = ...) -> None:
        """Adapt the value's scale to new targets without changing any value; does nothing when it is not adaptive.

        `moments` measures the targets of all trainers, and is only given where there are several; so in `observe`.
        """
        ...

    def observe(self, obs: Any, moments: Moments = ...) -> None:
        """Take observations [N, ...] into the running statistics, where there are any; called after an update."""
        ...
