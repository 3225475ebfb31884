"""An environment of your own, and a recipe that trains on it."""

import gymnasium
import numpy as np
from gymnasium import spaces

from srl import PPO, ActorCritic, Actors, Experiment, Policies, Stop, Train, Trainers, train


class Corridor(gymnasium.Env):
    """Walk left or right along a corridor to the goal: 1 for reaching it, and a small price for every step."""

    def __init__(self, length: int = 20, patience: int = 100) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length = length
        self.patience = patience

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.choice(self.length, size=2, replace=False)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.position = np.clip(self.position + (1 if action else -1), 0, self.length - 1)
        self.steps += 1
        terminated = bool(self.position == self.goal)
        truncated = self.steps == self.patience
        return self._observe(), float(terminated) - 0.01, terminated, truncated, {}

    def _observe(self):
        return np.array([self.position, self.goal], np.float32) * 2 / (self.length - 1) - 1


def recipe(length: int = 20, *, seed: int = 1, steps: int = 40_000) -> Experiment:
    """PPO in a corridor.

    Args:
        length: cells of the corridor
        seed: everything random is drawn from it
        steps: steps to train on
    """
    return Experiment(
        name="corridor",
        actors=Actors(env="custom_env:Corridor", env_kwargs={"length": length}, envs=16),
        policies=Policies(model=ActorCritic()),
        trainers=Trainers(algorithm=PPO(learning_rate=1e-3)),
        streams=Train(rollout=64),
        stop=Stop(steps=steps),
        seed=seed,
    )


if __name__ == "__main__":
    train(recipe())
