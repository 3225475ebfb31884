"""EnvPool's environments as one EnvBatch: envpool:Pong-v5, or any other of its ids.

    envpool.make(id) -> steps all rows on threads of its own, and resets a row in the step after its end

Options are those of envpool.make: num_threads, max_episode_steps, episodic_life, frame_skip and so on. Seeds of a pool
are fixed when it is made, so another seed makes the pool anew.

Atari rewards are clipped for learning unless reward_clip=False; scores are true. With episodic_life=True each life is
an episode for learning; the frames that EnvPool plays to begin the next life are shown to nobody, and what they score
is not told.

This module must not know who steps an EnvBatch. Nothing here needs envpool before one of its ids is named.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from srl.envs.gym import seeds
from srl.envs.vector import VectorBatch
from srl.errors import UserError, nearest
from srl.tree import Array, SpecTree, Tree

PREFIX = "envpool:"


def source(task: str, package: Any = None) -> Callable[..., EnvPool]:
    """What makes `num_envs` environments of an EnvPool id; `package` stands in for envpool."""
    envpool = _import(task) if package is None else package
    known: list[str] = envpool.list_all_envs()
    if task not in known:
        raise UserError(f"EnvPool has no environment {task!r}{nearest(task, known)}")
    return partial(EnvPool, task=task, package=envpool)


def _import(task: str) -> Any:
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise UserError(f"{PREFIX}{task} needs envpool; pip install 'srl[envpool]'") from error


class EnvPool:
    """Environments of one EnvPool id, stepped together."""

    def __init__(self, num_envs: int, *, task: str, package: Any, **options: Any) -> None:
        self._pool = _Pool(package, task, num_envs, options)
        self._rows = VectorBatch(self._pool, PREFIX + task)
        self.size = num_envs
        self.obs: SpecTree = self._rows.obs
        self.action: SpecTree = self._rows.action
        self.mask: SpecTree | None = self._rows.mask
        self.frames_per_step: int = self._pool.frames_per_step
        self.scored = self._pool.is_atari

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row."""
        self._rows.reset(seed, out)

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; EnvPool resets the others."""
        self._rows.step(action, out)
        if self.scored:
            # The end of a life is not the end of the game, and only the flag in the info can tell them apart.
            info = self._pool.info
            out["score"][:] = info["reward"]
            out["game_over"][:] = out["truncated"] | (info["terminated"] != 0)

    def render(self) -> Array | None:
        """The picture of row 0, when the pool was built to draw one."""
        return self._rows.render()

    def close(self) -> None:
        """Close the pool."""
        self._rows.close()


class _Pool(VectorEnv[Any, Any, Any]):
    """A pool that can be seeded anew, and that keeps the info of its last step."""

    def __init__(self, package: Any, task: str, size: int, options: dict[str, Any]) -> None:
        self.num_envs = size
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = options.get("render_mode")
        self.info: dict[str, Any] = {}
        config = package.make_spec(task, num_envs=size, **options).config
        self.frames_per_step: int = getattr(config, "frame_skip", 1)
        self.is_atari = hasattr(config, "reward_clip")
        if self.is_atari:
            options = {"reward_clip": True, **options}
        self._make = partial(package.make, task, env_type="gymnasium", num_envs=size, **options)
        self._sow(0)
        self.single_observation_space: Any = self._pool.observation_space
        self.single_action_space: Any = self._pool.action_space

    def _sow(self, seed: int) -> None:
        self._pool: Any = self._make(env_seed=seeds(seed, self.num_envs))
        self._seed: int | None = seed

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every row."""
        if seed is not None and seed != self._seed:
            self._pool.close()
            self._sow(seed)
        self._seed = None  # what follows is no longer the beginning
        obs, self.info = self._pool.reset()
        return obs, self.info

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every row, or reset it where its episode has ended."""
        obs, reward, terminated, truncated, self.info = self._pool.step(actions)
        return obs, reward, terminated, truncated, self.info

    def render(self) -> Any:
        """A picture of row 0."""
        return self._pool.render(np.array([0]))

    def close(self, **how: Any) -> None:
        """Close the pool."""
        self._pool.close()
