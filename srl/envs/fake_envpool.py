"""A stand-in for the package envpool, for tests: what srl/envs/envpool.py asks of it, with two small environments.

    Count-v0    episodes of 5 steps
    Lives-v5    an Atari game of 3 lives, each of 2 steps

This module must not know who uses it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.tree import Array


class PoolPackage:
    """In the shape of the package envpool."""

    def list_all_envs(self) -> list[str]:
        """The ids."""
        return ["Count-v0", "Lives-v5"]

    def make_spec(self, task_id: str, **options: Any) -> SimpleNamespace:
        """The options of an environment, as they were given or by default."""
        known: dict[str, Any] = {"num_envs": 1, "env_seed": [], "max_episode_steps": 1000}
        if task_id == "Lives-v5":
            known |= {"frame_skip": 4, "reward_clip": False, "episodic_life": False}
        for name in options:
            if name not in known:
                raise TypeError(f"Config.__new__() got an unexpected keyword argument {name!r}")
        return SimpleNamespace(config=SimpleNamespace(**{**known, **options}))

    def make(self, task_id: str, env_type: str, **options: Any) -> Pool:
        """A pool of environments."""
        if env_type != "gymnasium":
            raise ValueError(f"no pool of the type {env_type!r}")
        return Pool(self.make_spec(task_id, **options).config)


class Pool:
    """Observes [seed modulo 1000, game, step] and pays 5 plus the action; resets a row in the step after its end."""

    def __init__(self, config: Any) -> None:
        self.observation_space = spaces.Box(0, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.closed = False
        self._config = config
        self._atari = hasattr(config, "reward_clip")
        self._lives_of_game, self._steps_of_life = (3, 2) if self._atari else (1, 5)
        self._game = np.full(config.num_envs, -1)
        self._lives, self._age = np.zeros((2, config.num_envs), int)
        self._done, self._over = np.ones((2, config.num_envs), bool)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin the next game in every row."""
        self._over[:] = True
        obs, _, _, _, info = self._after(np.ones_like(self._done), np.zeros(len(self._game)))
        return obs, info

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Play in the rows that go on; begin the next life or game in the others, whose action is ignored."""
        if actions.shape != self._game.shape:
            raise ValueError(f"actions have shape {actions.shape}")
        return self._after(self._done.copy(), actions)

    def _after(self, fresh: Array, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        begins, plays = fresh & self._over, ~fresh
        self._game[begins] += 1
        self._lives[begins], self._age[begins] = self._lives_of_game, 0
        self._age[plays] += 1
        lost = plays & (self._age % self._steps_of_life == 0)
        self._lives[lost] -= 1
        cut, gone = plays & (self._age >= self._config.max_episode_steps), plays & (self._lives == 0)
        self._over = cut | gone
        self._done = self._over | (lost & getattr(self._config, "episodic_life", False))
        paid = np.where(plays, 5.0 + actions, 0.0).astype(np.float32)
        info: dict[str, Any] = {"elapsed_step": self._age.copy()}
        if self._atari:
            info |= {"lives": self._lives.copy(), "reward": paid, "terminated": gone.astype(np.int32)}
        reward = np.sign(paid) if getattr(self._config, "reward_clip", False) else paid
        obs = np.stack([np.array(self._config.env_seed) % 1000, self._game, self._age], axis=1, dtype=np.float32)
        return obs, reward, self._done & ~cut, cut, info

    def close(self) -> None:
        """Take note."""
        self.closed = True
