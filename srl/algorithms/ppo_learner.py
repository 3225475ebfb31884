"""The PPO learner: one batch in, a few epochs of clipped updates, stats out.

    reward ----> scaled ----+
    behaviour value, V(T) --+--> gae --> advantage (normalised), target (in value units)
                                             |
    epochs x minibatches:  evaluate --> surrogate + value loss - entropy --> gradient step

Values are compared in the policy's value units, so that the losses do not depend on the size of rewards when the policy
keeps value statistics. Must not know what kind of policy it trains.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from srl.algorithms import losses
from srl.algorithms.base import Batch, Policy, Ranks, Stats, Update, linear, mean_of, read_stats, require_rows
from srl.algorithms.chunks import Chunks, joined, last_value, valid_observations
from srl.algorithms.compiled import CompiledStep
from srl.algorithms.ppo import PPO
from srl.algorithms.returns import explained_variance, gae, off_policy_gae
from srl.algorithms.reward_scale import RewardScale
from srl.errors import UserError


class PPOLearner:
    """Improves a policy by proximal policy optimisation."""

    def __init__(self, settings: PPO, policy: Policy, seed: int = 0, ranks: Ranks | None = None) -> None:
        self.settings = settings
        self.policy = policy
        self.ranks = ranks
        self._moments = () if ranks is None else (ranks.moments,)
        self.update = Update(policy.module, "adam", settings.max_grad_norm, ranks)
        self.reward_scale = RewardScale(settings.gamma, *self._moments) if settings.normalise_reward else None
        self.generator = torch.Generator().manual_seed(seed)
        self._gradient_step = CompiledStep(self._losses, self.update) if settings.compile else self._eager_step

    def step(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from one batch; progress is the part of the run that is over."""
        settings = self.settings
        require_rows(batch)
        batch, advantage, target = self._targets(batch)
        variance = explained_variance(batch["value"], target, batch["valid"], *self._moments)
        chunks = self._chunks(batch, advantage, target)
        learning_rate = linear(settings.learning_rate, 0.0 if settings.anneal else None, progress)
        entropy = linear(settings.entropy, settings.entropy_end, progress)
        epochs: list[dict[str, float]] = []
        for _ in range(settings.epochs):
            epochs.append(self._epoch(chunks, learning_rate, entropy, batch))
            if settings.target_kl is not None and epochs[-1]["approx_kl"] > settings.target_kl:
                break
        # Only now: acting and learning on one batch must use the same normalisation.
        self.policy.observe(valid_observations(batch), *self._moments)
        return mean_of(epochs) | {
            "approx_kl": epochs[-1]["approx_kl"],
            "explained_variance": variance.item(),
            "learning_rate": learning_rate,
            "entropy_weight": entropy,
            "epochs": float(len(epochs)),
            "n_updates": float(self.update.count),
        }

    def state_dict(self) -> dict[str, Any]:
        """All that an exact continuation needs besides the policy's module; what all ranks share, only of rank 0."""
        shared = {} if self.ranks and self.ranks.rank else {"update": self.update.state_dict()}
        return shared | {
            "generator": self.generator.get_state(),
            "reward_scale": self.reward_scale.state_dict() if self.reward_scale else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state_dict."""
        self.update.load_state_dict(state["update"])
        self.generator.set_state(state["generator"].cpu())
        if self.reward_scale and state["reward_scale"]:
            self.reward_scale.load_state_dict(state["reward_scale"])

    def _targets(self, batch: Batch) -> tuple[Batch, Tensor, Tensor]:
        """Advantages and value targets [T, B], and the batch with the values that they were measured by."""
        reward, terminated, truncated, valid = (batch[k] for k in ("reward", "terminated", "truncated", "valid"))
        if self.reward_scale:
            reward = self.reward_scale(reward, terminated | truncated, valid)
        after = last_value(self.policy, batch)
        gamma, lam, vtrace = self.settings.gamma, self.settings.lam, self.settings.vtrace
        if vtrace is None:
            return batch, *gae(reward, batch["value"], after, terminated, truncated, valid, gamma, lam)
        with torch.no_grad():
            now = Chunks.cut(batch).evaluate(self.policy)
        batch = batch | {"value": joined(now.value, batch)}
        log_rho = joined(now.log_prob, batch) - batch["log_prob"]
        rows = (reward, batch["value"], after, terminated, truncated, valid)
        return batch, *off_policy_gae(log_rho, *rows, gamma, lam, vtrace.rho_bar, vtrace.c_bar)

    def _chunks(self, batch: Batch, advantage: Tensor, target: Tensor) -> Chunks:
        """The batch ready for minibatches, with values in value units."""
        valid = batch["valid"]
        self.policy.update_value_stats(target[valid], *self._moments)
        scale = self.policy.value_scale()
        if self.settings.normalise_advantage:
            advantage = losses.normalised(advantage, valid, *self._moments)
        return Chunks.cut(
            batch,
            log_prob=batch["log_prob"],
            advantage=advantage,
            target=target / scale,
            old_value=batch["value"] / scale,
        )

    def _epoch(self, chunks: Chunks, learning_rate: float, entropy: float, batch: Batch) -> dict[str, float]:
        """One pass over all valid rows in random minibatches."""
        scale = self.policy.value_scale()
        updates: list[Stats] = []
        weight = torch.tensor(entropy)
        for part in chunks.minibatches(self.settings.minibatches, self.generator):
            updates.append(self._gradient_step(learning_rate, part.rows, part.state, scale, weight))
        if self.ranks and len(updates) < self.settings.minibatches:
            # The others wait for one more, and end with this one.
            raise UserError(f"a trainer's part of a batch makes only {len(updates)} minibatches: ask for no more")
        return read_stats("PPO", updates, self.update.count, batch)

    def _eager_step(self, learning_rate: float, *args: Any) -> Stats:
        return self.update.step(self._losses(*args), learning_rate)

    def _losses(self, rows: dict[str, Any], state: Any, scale: Tensor, entropy_weight: Tensor) -> Stats:
        """The loss of a minibatch, its parts, and how far the policy has moved from the one that acted."""
        settings, valid = self.settings, rows.get("valid")
        now = Chunks(rows, state).evaluate(self.policy)
        log_ratio = losses.masked(now.log_prob - rows["log_prob"], valid)
        ratio = log_ratio.exp()
        surrogate = losses.clipped_surrogate(ratio, rows["advantage"], settings.clip, settings.dual_clip)
        policy_loss = losses.masked_mean(surrogate, valid)
        value_loss = losses.masked_mean(self._value_error(now.value / scale, rows), valid)
        entropy_loss = -losses.masked_mean(now.entropy, valid)
        with torch.no_grad():
            approx_kl = losses.masked_mean(losses.kl_estimate(log_ratio), valid)
            clip_fraction = losses.masked_mean(losses.outside(ratio, settings.clip), valid)
        return {
            "loss": policy_loss + settings.value_weight * value_loss + entropy_weight * entropy_loss,
            "policy_gradient_loss": policy_loss,
            "value_loss": value_loss,
            "entropy_loss": entropy_loss,
            "approx_kl": approx_kl,
            "clip_fraction": clip_fraction,
            **self.update.weight(log_ratio, valid),
        }

    def _value_error(self, value: Tensor, rows: dict[str, Any]) -> Tensor:
        """The value loss row by row."""
        clip, shape = self.settings.value_clip, self.settings.value_loss
        if clip is None:
            return losses.value_error(value, rows["target"], shape)
        return losses.clipped_value_error(value, rows["old_value"], rows["target"], clip, shape)
