"""Single Gymnasium environments as one EnvBatch: a loop in this process.

    action [size, ...] -> environment 0, 1, 2, ... one after the other -> rows of `out`

An environment whose episode has ended is reset by the step that follows, which ignores the action of its row. To know
whether there are action masks in the info, environment 0 is reset once before the first real reset. This module must
not know what the arrays it writes into belong to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from srl.envs.masks import find_masks, seen_space
from srl.envs.spaces import Observations, action_rows, spec_of_space
from srl.errors import UserError
from srl.tree import Array, SpecTree, Tree


def seeds(seed: int, size: int) -> list[int]:
    """Distinct seeds for `size` environments; 31 bits, because not every environment takes more."""
    words = np.random.SeedSequence(seed).generate_state(size + 64)
    return list(dict.fromkeys(int(word) >> 1 for word in words))[:size]


class GymBatch:
    """Single Gymnasium environments stepped one after another."""

    frames_per_step = 1
    scored = False
    kept = ("_envs", "_ended")

    def __init__(self, build: Callable[[], gymnasium.Env[Any, Any]], size: int, name: str) -> None:
        self.size = size
        self._name = name
        self._envs = [build() for _ in range(size)]
        self._action_space = self._envs[0].action_space
        self.action: SpecTree = spec_of_space(self._action_space, f"{name}: action")
        self._masks = find_masks(self._envs[0].observation_space, self._action_space, self._first_info, name)
        seen = seen_space(self._envs[0].observation_space, self._masks, name)
        self.obs: SpecTree = spec_of_space(seen, f"{name}: observation")
        self.mask: SpecTree | None = self._masks.spec if self._masks else None
        self._write = Observations(seen, name).write
        self._ended = [False] * size
        self._sown: dict[int, int] = {}
        """Environments that are to be seeded when they begin."""
        for i, env in enumerate(self._envs):
            self._refuse_difference(i, env)

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every environment."""
        self._sown = dict(enumerate(seeds(seed, self.size)))
        for i in range(self.size):
            while not self._begun(i, out):
                pass
        if self._masks:
            self._masks.check(out["mask"])

    def _begun(self, i: int, out: dict[str, Any]) -> bool:
        """Whether an environment could begin an episode."""
        try:
            obs, info = self._begin(i)
            self._write(out["obs"], i, obs)
            if self._masks:
                self._masks.write_row(out["mask"], i, obs, info)
        except Exception as error:
            self._fails(i, error)
            return False
        return True

    def _begin(self, i: int) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the first one of an environment is seeded."""
        obs, info = self._envs[i].reset(seed=self._sown[i]) if i in self._sown else self._envs[i].reset()
        self._sown.pop(i, None)
        self._ended[i] = False
        return obs, info

    def _fails(self, i: int, error: Exception) -> None:
        """What follows from the fault of an environment: it is everyone's."""
        error.add_note(f"in environment {i} of {self.size} of {self._name}")
        raise error

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every environment whose episode goes on; reset the others."""
        actions = action_rows(self._action_space, action)
        seen, reward, terminated, truncated = out["obs"], out["reward"], out["terminated"], out["truncated"]
        write, ended, masks = self._write, self._ended, self._masks
        reward[:], terminated[:], truncated[:] = 0, False, False
        for i, env in enumerate(self._envs):
            try:
                if ended[i]:
                    obs, info = self._begin(i)
                else:
                    obs, reward[i], over, cut, info = env.step(actions[i])
                    if over or cut:
                        terminated[i], truncated[i], ended[i] = over, cut, True
                write(seen, i, obs)
                if masks and not ended[i]:
                    masks.write_row(out["mask"], i, obs, info)
            except Exception as error:
                self._fails(i, error)
        if masks:
            masks.allow(out["mask"], ended)
            masks.check(out["mask"])

    def render(self) -> Array | None:
        """The picture of environment 0, when it was built to draw one."""
        frame: Any = self._envs[0].render() if self._envs[0].render_mode is not None else None
        return frame

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _first_info(self) -> dict[str, Any]:
        try:
            return self._envs[0].reset(seed=0)[1]
        except Exception as error:
            error.add_note(f"in environment 0 of {self.size} of {self._name}")
            raise

    def _refuse_difference(self, i: int, env: Any) -> None:
        first: Any = self._envs[0]
        if env.observation_space != first.observation_space or env.action_space != first.action_space:
            raise UserError(f"{self._name}: environment {i} has other spaces than environment 0; make them the same")
