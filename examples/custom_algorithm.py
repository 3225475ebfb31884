"""An algorithm of your own, A2C, and a recipe that trains with it."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from srl import ActorCritic, Actors, Experiment, Policies, Stop, Train, Trainers, train
from srl.algorithms.chunks import last_value, valid_observations
from srl.algorithms.losses import masked_mean
from srl.algorithms.returns import gae
from srl.errors import UserError
from srl.tree import index


@dataclass(frozen=True, kw_only=True)
class A2C:
    """Settings of advantage actor-critic."""

    learning_rate: float = 2e-3
    """Step size of Adam."""
    gamma: float = 0.99
    """Discount of the reward one row later."""
    lam: float = 0.95
    """Trace decay of the advantage estimate."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise UserError(f"A2C: learning_rate must be above 0, not {self.learning_rate}")

    def build(self, policy, seed: int = 0) -> "A2CLearner":
        return A2CLearner(self, policy)


class A2CLearner:
    """One gradient step per batch."""

    def __init__(self, settings: A2C, policy) -> None:
        self.settings = settings
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.module.parameters(), settings.learning_rate)
        self.updates = 0

    def step(self, batch: dict[str, Any], progress: float) -> dict[str, float]:
        valid = batch["valid"]
        now = self._evaluate(batch)
        advantage, target = gae(
            batch["reward"],
            now.value.detach(),
            last_value(self.policy, batch),
            batch["terminated"],
            batch["truncated"],
            valid,
            self.settings.gamma,
            self.settings.lam,
        )
        policy_loss = -masked_mean(advantage * now.log_prob, valid)
        value_loss = masked_mean((now.value - target).square(), valid)
        entropy = masked_mean(now.entropy, valid)
        loss = policy_loss + 0.5 * value_loss - self.settings.entropy * entropy
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.module.parameters(), 0.5)
        self.optimizer.step()
        self.updates += 1
        if not math.isfinite(loss.item() + grad_norm.item()):
            raise FloatingPointError(f"A2C: the loss or its gradient is not finite in update {self.updates}")
        self.policy.observe(valid_observations(batch))
        return {
            "loss": loss.item(),
            "policy_gradient_loss": policy_loss.item(),
            "value_loss": value_loss.item(),
            "entropy_loss": -entropy.item(),
            "grad_norm": grad_norm.item(),
            "n_updates": float(self.updates),
        }

    def _evaluate(self, batch: dict[str, Any]):
        """The policy's view of rows 0 to T-1: obs, first and mask hold one row more, state one entry per chunk."""
        rows = slice(len(batch["valid"]))
        mask = index(batch["mask"], rows) if "mask" in batch else None
        state = index(batch.get("state", {}), 0)
        return self.policy.evaluate(index(batch["obs"], rows), batch["action"], mask, batch["first"][rows], state)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def recipe(env: str = "CartPole-v1", *, seed: int = 1, steps: int = 60_000) -> Experiment:
    """Advantage actor-critic.

    Args:
        env: a Gymnasium id, module:Id-v0, or module:attribute
        seed: everything random is drawn from it
        steps: steps to train on
    """
    return Experiment(
        name="a2c",
        actors=Actors(env=env, envs=16),
        policies=Policies(model=ActorCritic()),
        trainers=Trainers(algorithm=A2C()),
        streams=Train(rollout=16),
        stop=Stop(steps=steps),
        seed=seed,
    )


if __name__ == "__main__":
    train(recipe())
