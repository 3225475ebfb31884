"""IMPALA: the settings of actor-critic learning with V-trace (Espeholt et al., 2018).

    batch -> current values -> V-trace corrects for the lag -> one gradient step -> stats

Imports no torch; the work is in impala_learner.py, imported by build().
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from srl.algorithms.checks import COUNT, FLAG, FRACTION, NOT_NEGATIVE, POSITIVE, check, one_of

if TYPE_CHECKING:
    from srl.algorithms.base import Policy, Ranks
    from srl.algorithms.impala_learner import IMPALALearner


@dataclass(frozen=True, kw_only=True)
class IMPALA:
    """Settings of V-trace actor-critic; losses are means over rows, not sums as in the paper."""

    optimizer: str = "adam"
    """"adam" or "rmsprop"."""
    learning_rate: float = 6e-4
    """Step size of the optimizer."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 over the run."""
    gamma: float = 0.99
    """Discount of the reward one row later."""
    lam: float = 1.0
    """Extra decay of the traces: 1 is V-trace as published, less lowers variance and adds bias."""
    rho_bar: float = 1.0
    """Upper bound on the importance weight of each temporal difference: decides which policy's value is learned."""
    c_bar: float = 1.0
    """Upper bound on the importance weights inside the traces: decides how fast it is learned."""
    entropy: float = 0.01
    """Weight of the entropy bonus (at the start of the run, when entropy_end is given)."""
    entropy_end: float | None = None
    """Weight of the entropy bonus at the end of the run, approached linearly; None keeps it constant."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    value_loss: str = "mse"
    """Shape of the value loss: "mse", or "huber", which is equal to it for errors below 1 and linear beyond."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled down to this norm; None leaves them alone."""
    epochs: int = 1
    """Gradient steps on each batch; each computes values and importance weights anew."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""

    def __post_init__(self) -> None:
        check(self, optimizer=one_of("adam", "rmsprop"), learning_rate=POSITIVE, anneal=FLAG)
        check(self, gamma=FRACTION, lam=FRACTION, rho_bar=POSITIVE, c_bar=POSITIVE)
        check(self, entropy=NOT_NEGATIVE, entropy_end=NOT_NEGATIVE.or_none(), value_weight=NOT_NEGATIVE)
        check(self, value_loss=one_of("mse", "huber"), max_grad_norm=POSITIVE.or_none())
        check(self, epochs=COUNT, normalise_reward=FLAG)

    def build(self, policy: Policy, seed: int = 0, ranks: Ranks | None = None) -> IMPALALearner:
        """The learner of these settings for a policy; nothing in it is random, so the seed changes nothing."""
        from srl.algorithms.impala_learner import IMPALALearner

        return IMPALALearner(self, policy, ranks)
