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
from srl.envs.gym import GymBatch
from srl.tree import Tree, copy_into, zeros


class Guarded(GymBatch):
    """Single Gymnasium environments stepped one after another, each replaced when it fails."""

    kept = ("_envs", "_ended", "_last", "_seed", "_lives", "_sown")

    def __init__(
        self, build: Callable[[], gymnasium.Env[Any, Any]], size: int, name: str, limits: Limits | None = None
    ) -> None:
        super().__init__(build, size, name)
        self._build = build
        self._faults = Faults(limits or Limits(), name, size)
        self._finite = Finite(self.obs)
        self._last: Any = zeros(self.obs, size)
        self._seed = 0
        self._lives = [0] * size
        self._failed: list[int] = []

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every environment; one that fails is built anew until it can."""
        self._seed, self._lives = seed, [0] * self.size
        super().reset(seed, out)
        copy_into(self._last, out["obs"])

    def _begun(self, i: int, out: dict[str, Any]) -> bool:
        if not super()._begun(i, out):
            return False
        wrong = self._finite.wrong({"obs": out["obs"]}).get(i)
        if wrong is not None:
            self._replace(i, "nan", wrong)
        return wrong is None

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every environment whose episode goes on; reset the others."""
        if "broken" in out:
            out["broken"][:] = False
        self._failed.clear()
        super().step(action, out)
        if self._failed:
            break_rows(out, self._failed, self._last)
        if wrong := self._finite.wrong(out):
            for i, text in wrong.items():
                self._replace(i, "nan", text)
            break_rows(out, list(wrong), self._last)
        copy_into(self._last, out["obs"])

    def _fails(self, i: int, error: Exception) -> None:
        self._replace(i, *of_exception(error))
        self._failed.append(i)

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
