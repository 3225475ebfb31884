"""An encoder of your own inside the actor-critic, and a recipe that trains it."""

from dataclasses import dataclass

import torch
from torch import nn

from srl import PPO, ActorCritic, Actors, Experiment, Policies, Stop, Trainers, train
from srl.errors import UserError
from srl.tree import Spec


@dataclass(frozen=True, kw_only=True)
class Fourier:
    """Settings: the observation beside sines and cosines of learnt directions of it."""

    waves: int = 16
    """Number of directions."""
    width: int = 64
    """Number of features."""

    def build(self, obs_spec) -> nn.Module:
        return FourierEncoder(self, obs_spec)


class FourierEncoder(nn.Module):
    """Observations [N, size] to features [N, features]."""

    def __init__(self, settings: Fourier, obs_spec) -> None:
        super().__init__()
        if not isinstance(obs_spec, Spec) or len(obs_spec.shape) != 1:
            raise UserError("Fourier takes one vector as observation; use Auto() for others")
        self.waves = nn.Linear(obs_spec.size, settings.waves)
        self.layers = nn.Sequential(nn.Linear(obs_spec.size + 2 * settings.waves, settings.width), nn.Tanh())
        self.features = settings.width

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        waves = self.waves(obs)
        return self.layers(torch.cat([obs, waves.sin(), waves.cos()], 1))


def recipe(env: str = "CartPole-v1", *, waves: int = 16, steps: int = 60_000) -> Experiment:
    """PPO with Fourier features.

    Args:
        env: a Gymnasium id with a vector as observation
        waves: number of learnt directions
        steps: steps to train on
    """
    return Experiment(
        name="fourier",
        actors=Actors(env=env),
        policies=Policies(model=ActorCritic(encoder=Fourier(waves=waves))),
        trainers=Trainers(algorithm=PPO(learning_rate=1e-3)),
        stop=Stop(steps=steps),
    )


if __name__ == "__main__":
    train(recipe())
