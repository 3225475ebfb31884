"""Environments that are stepped together as one EnvBatch that survives their faults: native vectors, games, arrays.

    raises, or gives what does not fit its spaces     all rows are truncated, and the whole batch is built anew
    gives a number that is not finite                 that row is truncated, and begins anew in the next step,
                                                      where rows can be begun one by one; otherwise as above

It stands around any EnvBatch. What it costs is a look at rewards and at observations of floats, and a copy of the last
good observations, in every step. What blocks or kills the process is for envs/isolated.py, or for whoever replaces
actors. A batch that contradicts what it says of itself is `Unusable`, and building it anew would not help.

This module must not know how a batch steps its environments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from srl.envs import kept
from srl.envs.faults import Fault, Faults, Finite, Limits, Unusable, break_rows, of_exception, seed_after
from srl.errors import UserError
from srl.tree import Array, Tree, copy_into, zeros

if TYPE_CHECKING:
    from srl.envs.base import EnvBatch


class Rebuilt:
    """A batch of environments that is built anew as a whole when it fails; `build` makes another like it."""

    def __init__(self, batch: EnvBatch, build: Callable[[], EnvBatch], name: str, limits: Limits) -> None:
        self.size = batch.size
        self.obs, self.action, self.mask = batch.obs, batch.action, batch.mask
        self.frames_per_step, self.scored = batch.frames_per_step, batch.scored
        self._batch: Any = batch
        self._build = build
        self._name = name
        self._faults = Faults(limits, name, self.size)
        self._finite = Finite(self.obs)
        self._last: Any = zeros(self.obs, self.size)
        self._seed = self._lives = 0
        self._open = True
        self._fresh = False
        """Built, and to be reset by the next step."""
        self._restarts = False
        """Whether there are rows to be begun anew in the next step."""
        self._again = np.zeros(self.size, bool)
        """Which, if there are any."""

    @property
    def kept(self) -> tuple[str, ...]:
        """What changes, where the batch inside says what of it does."""
        inside: tuple[str, ...] = getattr(self._batch, "kept", ())
        own = ("_last", "_seed", "_lives", "_fresh", "_restarts", "_again")
        return (*own, *(f"_batch.{name}" for name in inside)) if inside else ()

    def why_not(self) -> str | None:
        """Why the environments cannot say how they stand; None where they can."""
        return kept.why_not(self._batch)

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row; a batch that fails is built anew until it can."""
        self._seed, self._lives = seed, 0
        self._begin(out)

    def _begin(self, out: dict[str, Any]) -> None:
        begun = False
        while not begun:
            try:
                self._batch.reset(seed_after(self._seed, 0, self._lives) if self._lives else self._seed, out)
                begun = self._all_finite(self._finite.wrong({"obs": out["obs"]}))
            except Exception as error:
                self._replace(error)
        self._fresh = self._restarts = False
        copy_into(self._last, out["obs"])

    def _all_finite(self, wrong: dict[int, str]) -> bool:
        """Whether no row is wrong; where one is, that costs the batch."""
        if wrong:
            self._count_and_build("nan", next(iter(wrong.values())))
        return not wrong

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; the other rows begin a new one."""
        if "broken" in out:
            out["broken"][:] = False
        if self._fresh:
            for name in out.keys() & {"reward", "terminated", "truncated", "score", "game_over"}:
                out[name][:] = 0
            self._begin(out)
            return
        try:
            self._batch.step(action, out)
            if self._restarts:
                self._batch.restart(self._again, out)
        except Exception as error:
            self._replace(error)
            break_rows(out, range(self.size), self._last)
            return
        self._break_what_is_not_finite(out)
        copy_into(self._last, out["obs"])

    def _break_what_is_not_finite(self, out: dict[str, Any]) -> None:
        wrong = self._finite.wrong(out)
        self._restarts = False
        if wrong and getattr(self._batch, "by_row", False):
            rows = list(wrong)
            self._again[:] = False
            # One whose episode has ended begins anew by itself.
            self._again[rows] = ~(out["terminated"] | out["truncated"])[rows]
            self._restarts = bool(self._again.any())
            for row, text in wrong.items():
                self._faults.add(row, "nan", text)
            break_rows(out, rows, self._last)
        elif not self._all_finite(wrong):
            break_rows(out, range(self.size), self._last)

    def _replace(self, error: Exception) -> None:
        if isinstance(error, Unusable):
            raise error
        self._count_and_build(*of_exception(error))

    def _count_and_build(self, kind: Any, text: str) -> None:
        """Close the batch that failed and build another, which the next step resets."""
        self._faults.add(None, kind, text)
        with contextlib.suppress(Exception):
            getattr(self._batch, "abandon", self._batch.close)()
        self._open = False
        while not self._open:
            try:
                self._batch = self._build()
                self._open = True
            except Exception as error:
                self._faults.add(None, *of_exception(error))
        if (self._batch.size, self._batch.obs, self._batch.action) != (self.size, self.obs, self.action):
            raise UserError(f"{self._name}: built anew, it has other spaces than before; make them the same")
        self._lives += 1
        self._fresh, self._restarts = True, False

    def faults(self) -> list[Fault]:
        """What has gone wrong since the last call."""
        return self._faults.drain()

    def render(self) -> Array | None:
        """The picture of environment 0, when it was built to draw one."""
        return self._batch.render()

    def close(self) -> None:
        """Close the environments."""
        if self._open:
            self._open = False
            self._batch.close()
