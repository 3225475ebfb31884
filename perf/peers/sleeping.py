"""Environments that sleep: what they cost is time and hardly any processor, so that hundreds fit on a machine.

They come as one vector environment, whose step sleeps once for all its rows. Given a folder, they count the processor
time of their steps there. This module needs nothing but Gymnasium, because programs in other virtual environments are
measured on it, too.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from spent import counting

LENGTH = 1000
"""Steps of an episode; it is truncated then."""


class Sleeping(VectorEnv[Any, Any, Any]):
    """Each step of all rows together takes so many seconds; reward 1, and nothing to learn."""

    def __init__(self, num_envs: int = 1, seconds: float = 0.02, folder: str = "") -> None:
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}
        self.single_observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seconds = seconds
        self._step = 0
        self._obs = np.zeros((num_envs, 4), np.float32)
        self._flags = np.zeros((2, num_envs), bool)
        self._rewards = np.ones((2, num_envs))
        self._rewards[0] = 0.0
        self.step = counting("env", self.step, folder)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row."""
        super().reset(seed=seed)
        self._step = 0
        return self._obs, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Sleep; the step after an episode's end begins the next one in every row."""
        if self._seconds:
            time.sleep(self._seconds)
        resets = self._step == LENGTH
        self._step = 0 if resets else self._step + 1
        # New arrays each time, because there are programs that keep what they are given.
        ended = np.full(self.num_envs, self._step == LENGTH)
        return self._obs.copy(), self._rewards[int(not resets)].copy(), self._flags[0].copy(), ended, {}
