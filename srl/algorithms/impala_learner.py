"""The IMPALA learner: one batch in, one corrected actor-critic step, stats out.

    evaluate all rows --> values, log-probabilities
                              |
    rewards, behaviour -------+--> vtrace --> advantage, target --> loss --> Update.step

The batch may come from older weights; V-trace weighs each row by how likely the current policy is to act the same.
Must not know what kind of policy it trains.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from srl.algorithms import losses
from srl.algorithms.base import Batch, Policy, Ranks, Stats, Update, linear, mean_of, read_stats, require_rows
from srl.algorithms.chunks import Chunks, joined, last_value, valid_observations
from srl.algorithms.impala import IMPALA
from srl.algorithms.returns import explained_variance, vtrace
from srl.algorithms.reward_scale import RewardScale


class IMPALALearner:
    """Improves a policy by V-trace actor-critic."""

    def __init__(self, settings: IMPALA, policy: Policy, ranks: Ranks | None = None) -> None:
        self.settings = settings
        self.policy = policy
        self.ranks = ranks
        self._moments = () if ranks is None else (ranks.moments,)
        self.update = Update(policy.module, settings.optimizer, settings.max_grad_norm, ranks)
        self.reward_scale = RewardScale(settings.gamma, *self._moments) if settings.normalise_reward else None

    def step(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from one batch; progress is the part of the run that is over."""
        require_rows(batch)
        settings = self.settings
        ended = batch["terminated"] | batch["truncated"]
        if self.reward_scale:
            batch = batch | {"reward": self.reward_scale(batch["reward"], ended, batch["valid"])}
        learning_rate = linear(settings.learning_rate, 0.0 if settings.anneal else None, progress)
        entropy = linear(settings.entropy, settings.entropy_end, progress)
        passes = [self._pass(batch, learning_rate, entropy) for _ in range(settings.epochs)]
        _, target = passes[-1]
        # Only now: the statistics rescale weights, which must not happen between a loss and its gradient,
        # and acting and learning on one batch must use the same normalisation.
        self.policy.update_value_stats(target[batch["valid"]], *self._moments)
        self.policy.observe(valid_observations(batch), *self._moments)
        return mean_of(stats for stats, _ in passes) | {
            "learning_rate": learning_rate,
            "entropy_weight": entropy,
            "n_updates": float(self.update.count),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that an exact continuation needs besides the policy's module; what all ranks share, only of rank 0."""
        shared = {} if self.ranks and self.ranks.rank else {"update": self.update.state_dict()}
        return shared | {
            "reward_scale": self.reward_scale.state_dict() if self.reward_scale else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        self.update.load_state_dict(state["update"])
        if self.reward_scale and state["reward_scale"]:
            self.reward_scale.load_state_dict(state["reward_scale"])

    def _pass(self, batch: Batch, learning_rate: float, entropy: float) -> tuple[dict[str, float], Tensor]:
        """One step of the weights on the whole batch; its stats and the value targets [T, B]."""
        stats, target = self._losses(batch, entropy)
        updates = [self.update.step(stats, learning_rate)]
        return read_stats("IMPALA", updates, self.update.count, batch), target

    def _losses(self, batch: Batch, entropy_weight: float) -> tuple[Stats, Tensor]:
        """The loss of the batch with its parts, and the value targets [T, B]."""
        settings, valid = self.settings, batch["valid"]
        now = Chunks.cut(batch).evaluate(self.policy)
        log_prob, value, entropy = (joined(x, batch) for x in (now.log_prob, now.value, now.entropy))
        log_rho = log_prob.detach() - batch["log_prob"]
        advantage, target = self._targets(batch, log_rho, value.detach())
        scale = self.policy.value_scale()
        # Advantages in value units, like the value loss: neither then depends on the size of rewards.
        policy_loss = -losses.masked_mean(advantage / scale * log_prob, valid)
        value_loss = losses.masked_mean(losses.value_error(value / scale, target / scale, settings.value_loss), valid)
        entropy_loss = -losses.masked_mean(entropy, valid)
        ratio = log_rho.exp()
        stats = {
            "loss": policy_loss + settings.value_weight * value_loss + entropy_weight * entropy_loss,
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "approx_kl": losses.masked_mean(losses.kl_estimate(log_rho), valid),
            "rho": losses.masked_mean(ratio.clamp(max=settings.rho_bar), valid),
            "clip_fraction": losses.masked_mean((ratio > settings.rho_bar).float(), valid),
            "explained_variance": explained_variance(value.detach(), target, valid, *self._moments),
            **self.update.weight(log_rho, valid),
        }
        return stats, target

    def _targets(self, batch: Batch, log_rho: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """V-trace advantages and value targets [T, B] from the current values."""
        settings = self.settings
        return vtrace(
            log_rho,
            batch["reward"],
            value,
            last_value(self.policy, batch),
            batch["terminated"],
            batch["truncated"],
            batch["valid"],
            settings.gamma,
            settings.rho_bar,
            settings.c_bar,
            settings.lam,
        )
