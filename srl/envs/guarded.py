"""Single Gymnasium environments in this process as one EnvBatch, in which a fault costs only its own row.

    action -> environment 0, 1, 2, ... one after the other -> rows of `out`
    one that raises, or gives what is not finite or not of its space -> closed, built anew; its row is truncated

It is GymBatch with a guard around each environment. What blocks or kills the process cannot be guarded against here;
see envs/isolated.py. The last good observation of every row is kept, which is one more copy in every step. This module
must not know what the arrays it writes into belong to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium

from srl.envs.faults import Fault, Faults, Finite, Limits, break_rows, of_exception, seed_after
from srl.envs.gym import seeds
from srl.envs.masks import find_masks, seen_space
from srl.envs.spaces import Observations, action_rows, spec_of_space
from srl.errors import UserError
from srl.tree import Array, SpecTree, Tree, copy_into, zeros


class Guarded:
    """Single Gymnasium environments stepped one after another, each replaced when it fails."""

    frames_per_step = 1
    scored = False
    kept = ("_envs", "_ended", "_last", "_seed", "_lives", "_sown")

    def __init__(
        self, build: Callable[[], gymnasium.Env[Any, Any]], size: int, name: str, limits: Limits | None = None
    ) -> None:
        self.size = size
        self._name = name
        self._build = build
        self._faults = Faults(limits or Limits(), name, size)
        self._envs = [build() for _ in range(size)]
        first: Any = self._envs[0]
        self._action_space = first.action_space
        self.action: SpecTree = spec_of_space(self._action_space, f"{name}: action")
        self._masks = find_masks(first.observation_space, self._action_space, lambda: first.reset(seed=0)[1], name)
        seen = seen_space(first.observation_space, self._masks, name)
        self.obs: SpecTree = spec_of_space(seen, f"{name}: observation")
        self.mask: SpecTree | None = self._masks.spec if self._masks else None
        self._write = Observations(seen, name).write
        self._finite = Finite(self.obs)
        self._last: Any = zeros(self.obs, size)
        self._ended = [False] * size
        self._seed = 0
        self._lives = [0] * size
        self._sown: dict[int, int] = {}
        for i, env in enumerate(self._envs):
            self._refuse_difference(i, env)

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every environment; one that fails is built anew until it can."""
        self._seed, self._lives = seed, [0] * self.size
        self._sown = dict(enumerate(seeds(seed, self.size)))
        for i in range(self.size):
            while not self._begun(i, out):
                pass
        copy_into(self._last, out["obs"])
        if self._masks:
            self._masks.check(out["mask"])

    def _begun(self, i: int, out: dict[str, Any]) -> bool:
        try:
            obs, info = self._reset(i)
            self._write(out["obs"], i, obs)
            if self._masks:
                self._masks.write_row(out["mask"], i, obs, info)
        except Exception as error:
            self._replace(i, *of_exception(error))
            return False
        wrong = self._finite.wrong({"obs": out["obs"]}).get(i)
        if wrong is not None:
            self._replace(i, "nan", wrong)
        return wrong is None

    def _reset(self, i: int) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the first one of an environment is seeded."""
        obs, info = self._envs[i].reset(seed=self._sown[i]) if i in self._sown else self._envs[i].reset()
        self._sown.pop(i, None)
        self._ended[i] = False
        return obs, info

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every environment whose episode goes on; reset the others."""
        actions = action_rows(self._action_space, action)
        # Looked up once, and stepped here and not in a call, because this is done for every environment.
        seen, reward, terminated, truncated = out["obs"], out["reward"], out["terminated"], out["truncated"]
        write, ended, masks = self._write, self._ended, self._masks
        reward[:], terminated[:], truncated[:] = 0, False, False
        if "broken" in out:
            out["broken"][:] = False
        failed: list[int] = []
        for i, env in enumerate(self._envs):
            try:
                if ended[i]:
                    obs, info = self._reset(i)
                else:
                    obs, reward[i], over, cut, info = env.step(actions[i])
                    if over or cut:
                        terminated[i], truncated[i], ended[i] = over, cut, True
                write(seen, i, obs)
                if masks and not ended[i]:
                    masks.write_row(out["mask"], i, obs, info)
            except Exception as error:
                self._replace(i, *of_exception(error))
                failed.append(i)
        break_rows(out, failed, self._last)
        self._break_what_is_not_finite(out)
        copy_into(self._last, out["obs"])
        if self._masks:
            self._masks.allow(out["mask"], self._ended)
            self._masks.check(out["mask"])

    def _break_what_is_not_finite(self, out: dict[str, Any]) -> None:
        if wrong := self._finite.wrong(out):
            for i, text in wrong.items():
                self._replace(i, "nan", text)
            break_rows(out, list(wrong), self._last)

    def _replace(self, i: int, kind: Any, text: str) -> None:
        """Close an environment that failed and build another, which begins an episode in the next step."""
        self._faults.add(i, kind, text)
        with contextlib.suppress(Exception):
            self._envs[i].close()
        while True:
            try:
                env = self._build()
                self._refuse_difference(i, env)
                break
            except Exception as error:
                self._faults.add(i, *of_exception(error))
        self._envs[i] = env
        self._lives[i] += 1
        self._sown[i] = seed_after(self._seed, i, self._lives[i])
        self._ended[i] = True

    def faults(self) -> list[Fault]:
        """What has gone wrong since the last call."""
        return self._faults.drain()

    def render(self) -> Array | None:
        """The picture of environment 0, when it was built to draw one."""
        frame: Any = self._envs[0].render() if self._envs[0].render_mode is not None else None
        return frame

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()

    def _refuse_difference(self, i: int, env: Any) -> None:
        first: Any = self._envs[0]
        if env.observation_space != first.observation_space or env.action_space != first.action_space:
            raise UserError(f"{self._name}: environment {i} has other spaces than environment 0; make them the same")
