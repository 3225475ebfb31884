"""PPO: the settings of proximal policy optimisation (Schulman et al., 2017).

    batch -> advantages -> epochs x minibatches of the clipped surrogate -> stats

Imports no torch; the work is in ppo_learner.py, imported by build().
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from srl.algorithms.checks import ABOVE_ONE, COUNT, FLAG, FRACTION, NOT_NEGATIVE, POSITIVE, check, one_of

if TYPE_CHECKING:
    from srl.algorithms.base import Policy, Ranks
    from srl.algorithms.ppo_learner import PPOLearner


@dataclass(frozen=True, kw_only=True)
class VTrace:
    """Correction of advantages and targets for what was acted with older weights (Espeholt et al., 2018)."""

    rho_bar: float = 1.0
    """Upper bound on the importance weight of each temporal difference: decides which policy's value is learned."""
    c_bar: float = 1.0
    """Upper bound on the importance weights inside the traces: decides how fast it is learned."""

    def __post_init__(self) -> None:
        check(self, rho_bar=POSITIVE, c_bar=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class PPO:
    """Settings of PPO with generalised advantage estimation; the defaults suit small continuous and discrete tasks."""

    learning_rate: float = 3e-4
    """Step size of Adam."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 over the run."""
    gamma: float = 0.99
    """Discount of the reward one row later."""
    lam: float = 0.95
    """Trace decay of the advantage estimate: 0 trusts the value function, 1 the sampled return."""
    vtrace: VTrace | None = None
    """Correct advantages for old weights: one more pass over each batch, before its epochs. None trusts the batch."""
    clip: float = 0.2
    """How far the probability ratio may move from 1 before its gradient is cut."""
    value_clip: float | None = None
    """How far a value may move from the behaviour value, in units of the value scale; None lets it move freely."""
    dual_clip: float | None = None
    """Bound, as a multiple of the advantage, on the loss of bad actions with huge ratios; None sets none."""
    target_kl: float | None = None
    """Stop after the epoch whose mean approximate KL divergence exceeds this; None runs all epochs."""
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
    epochs: int = 4
    """Passes over each batch."""
    minibatches: int = 4
    """Equal parts each pass is cut into: of rows, or of chunks for recurrent policies."""
    normalise_advantage: bool = True
    """Bring the advantages of the whole batch to mean 0 and standard deviation 1."""
    normalise_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    compile: bool = False
    """Compile the gradient step: some ten seconds at the start, then less than half of the time for small networks."""

    def __post_init__(self) -> None:
        check(self, learning_rate=POSITIVE, anneal=FLAG, gamma=FRACTION, lam=FRACTION, clip=POSITIVE)
        check(self, value_clip=POSITIVE.or_none(), dual_clip=ABOVE_ONE.or_none(), target_kl=POSITIVE.or_none())
        check(self, entropy=NOT_NEGATIVE, entropy_end=NOT_NEGATIVE.or_none(), value_weight=NOT_NEGATIVE)
        check(self, value_loss=one_of("mse", "huber"), max_grad_norm=POSITIVE.or_none())
        check(self, epochs=COUNT, minibatches=COUNT, normalise_advantage=FLAG, normalise_reward=FLAG)
        check(self, compile=FLAG)

    def build(self, policy: Policy, seed: int = 0, ranks: Ranks | None = None) -> PPOLearner:
        """The learner of these settings for a policy."""
        from srl.algorithms.ppo_learner import PPOLearner

        return PPOLearner(self, policy, seed, ranks)
