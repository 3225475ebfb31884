"""Environments in processes of their own as one EnvBatch: a hang, an abort or a kill costs only its own row.

    actions -> shared memory -> all children are woken -> answers as they come -> shared memory -> rows of `out`
    a child that fails -> its row is truncated -> a new child is forked while the others go on -> its first observation

Each child builds a batch of one environment, of whatever kind, and works in its row of one block of anonymous memory.
What fails is told by `faults`: an exception, a wrong shape, a number that is not finite, no answer in time, a death.

    waits for                              unblocked by
    every child that was asked             its answer; its end, told by the zygote; its time limit
    when all are being built: one child    the same
    the zygote to describe an environment  its answer; its end; the limit of a reset

Until a new child is ready its row shows the last good observation again and stays truncated and broken: reset rows, of
which there may be any number in a row. How many depends on timing, so a run with faults is not reproducible; one
without them is. All children end with this process, and earlier if the thread ends that built the batch. Linux only.
This module must not know how environments are made, nor what the arrays it writes into belong to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from srl.envs import zygote
from srl.envs.faults import Fault, Faults, Finite, Kind, Limits, break_rows, seed_after
from srl.envs.gym import seeds
from srl.envs.line import Line, end_of
from srl.envs.state import from_bytes
from srl.envs.zygote import ENDED, FAILED
from srl.errors import UserError
from srl.tree import Array, Tree, copy_into, zeros

if TYPE_CHECKING:
    from srl.envs.base import EnvBatch


class Isolated:
    """Environments that each live in a child process; `build(row)` makes a batch of one."""

    kept = ("_ended", "_last", "_seed", "_rebuilt", "_children")

    def __init__(self, build: Callable[[int], EnvBatch], size: int, name: str, limits: Limits | None = None) -> None:
        self.size = size
        self._limits = limits or Limits()
        self._faults = Faults(self._limits, name, size)
        self._line = Line(build, size, name)
        try:
            outline = self._line.describe(self._limits.reset_seconds)
            self._shared = self._line.share(outline)
        except BaseException:
            self._line.close()
            raise
        self.obs, self.action, self.mask = outline.obs, outline.action, outline.mask
        self.frames_per_step, self.scored = outline.frames_per_step, outline.scored
        self._out: dict[str, Any] = self._shared["out"]
        self._finite = Finite(self.obs)
        self._last: Any = zeros(self.obs, size)
        self._ended = np.zeros(size, bool)
        self._seed = 0
        self._lives = [0] * size
        self._rebuilt = [0] * size
        # A row is in at most one of these: it owes an answer until then, its child is being built until then, or its
        # child is built and its first observation was not shown yet.
        self._due: dict[int, float] = {}
        self._building: dict[int, float] = {}
        self._fresh: set[int] = set()
        self._failed: set[int] = set()
        self._children = _Children(self)
        self._until = math.inf  # nobody is overdue before

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row; one that fails is built anew until it can."""
        self._gather(everyone=True)  # what is being built may fail, and that counts
        self._seed, self._rebuilt = seed, [0] * self.size
        self._shared["what"][:] = zygote.RESET
        self._shared["seed"][:] = seeds(seed, self.size)
        for row in range(self.size):
            if self._lives[row]:
                self._ask(row, self._limits.reset_seconds)
            else:
                self._start(row)
        while self._due or self._building:
            self._gather(everyone=True)
            self._refuse_what_is_not_finite({"obs": self._out["obs"]})
        self._fresh.clear()
        self._failed.clear()
        for name in ("obs", "mask") if self.mask is not None else ("obs",):
            copy_into(out[name], self._out[name])
        copy_into(self._last, out["obs"])
        self._ended[:] = False

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; the other rows begin a new one."""
        copy_into(self._shared["action"], action)
        self._shared["what"][:] = zygote.STEP
        limits = self._limits
        for row in range(self.size):
            if row not in self._building and row not in self._fresh:
                self._ask(row, limits.reset_seconds if self._ended[row] else limits.limit_seconds)
        self._gather()
        for name, leaf in self._out.items():
            copy_into(out[name], leaf)
        self._refuse_what_is_not_finite(out)
        if "broken" in out:
            out["broken"][:] = False
        break_rows(out, sorted(self._failed | self._building.keys()), self._last)
        self._fresh &= self._failed
        self._failed.clear()
        copy_into(self._last, out["obs"])
        np.logical_or(out["terminated"], out["truncated"], out=self._ended)

    def _ask(self, row: int, seconds: float) -> None:
        self._due[row] = self._no_later(time.monotonic() + seconds)
        self._line.wake(row)

    def _no_later(self, until: float) -> float:
        self._until = min(self._until, until)
        return until

    def _start(self, row: int) -> None:
        """Have a new child take the place of the one there may be."""
        self._lives[row] += 1
        self._fresh.discard(row)
        self._building[row] = self._no_later(time.monotonic() + self._limits.reset_seconds)
        self._line.send(zygote.START, row, self._lives[row])

    def _gather(self, *, everyone: bool = False) -> None:
        """Hear the rows until all that were asked have answered; with `everyone`, until all children are built, too."""
        while self._due or (self._building and everyone) or len(self._building) == self.size:
            for record in self._line.hear(self._until - time.monotonic()):
                self._take(*record)
            if (now := time.monotonic()) >= self._until:
                self._give_up(now)

    def _take(self, row: int, life: int, what: int, status: int) -> None:
        if life != self._lives[row]:
            return
        if what == FAILED:
            kind = cast(Kind, zygote.read(self._shared["kind"][row]))
            self._fail(row, kind, zygote.read(self._shared["text"][row]))
        elif what == ENDED:
            self._fail(row, "died", end_of(status) + self._line.stack(row))
        elif self._building.pop(row, None) is not None:
            self._fresh.add(row)
            for name in self._out.keys() - {"obs", "mask"}:
                self._out[name][row] = 0
        else:
            self._due.pop(row, None)

    def _give_up(self, now: float) -> None:
        self._until = math.inf
        for row, until in [*self._due.items(), *self._building.items()]:
            if until <= now:
                resets = row in self._building or self._ended[row] or self._shared["what"][row] == zygote.RESET
                limit = self._limits.reset_seconds if resets else self._limits.limit_seconds
                self._fail(row, "hung", f"no answer to a {'reset' if resets else 'step'} within {limit:g} s")
            else:
                self._no_later(until)

    def _fail(self, row: int, kind: Kind, text: str) -> None:
        self._due.pop(row, None)
        self._failed.add(row)
        self._faults.add(row, kind, text)
        self._rebuilt[row] += 1
        self._shared["seed"][row] = seed_after(self._seed, row, self._rebuilt[row])
        self._start(row)

    def _refuse_what_is_not_finite(self, step: dict[str, Any]) -> None:
        for row, text in self._finite.wrong(step).items():
            if row not in self._building:  # of those nothing was said yet
                self._fail(row, "nan", text)

    def tell(self, row: int) -> bytes:
        """How an environment stands, as its child writes it down; UserError says why it cannot."""
        self._gather(everyone=True)
        if row not in self._fresh:
            self._ask_alone(row, zygote.TELL)
        if row in self._fresh or row in self._failed:
            raise UserError(f"environment {row} has just failed and begins anew")
        letter = self._line.letter()
        why = from_bytes(letter).get("why")
        if why is not None:
            raise UserError(why)
        return letter

    def take(self, row: int, data: bytes) -> None:
        """Let an environment go on from how another stood."""
        self._line.send_letter(data)
        self._ask_alone(row, zygote.TAKE)
        if row in self._failed:
            raise UserError(self._faults.drain()[-1].text)

    def _ask_alone(self, row: int, what: int) -> None:
        self._shared["what"][row] = what
        self._ask(row, self._limits.reset_seconds)
        self._gather()

    def why_not(self) -> str | None:
        """Why the environments cannot say how they stand; None where they can."""
        try:
            self.tell(0)
        except UserError as error:
            return str(error)
        return None

    def faults(self) -> list[Fault]:
        """What has gone wrong since the last call."""
        return self._faults.drain()

    def render(self) -> Array | None:
        """Nothing: pictures are drawn by environments in this process."""
        return None

    def close(self) -> None:
        """Let the children close what they can in a second, and end them all."""
        if not self._shared:
            return
        self._shared["what"][:] = zygote.CLOSE
        alive = {row for row in range(self.size) if self._lives[row] and row not in {**self._due, **self._building}}
        for row in alive:
            self._line.wake(row)
        self._line.part(alive)
        self._line.close()
        self._shared, self._out = {}, {}  # the memory goes with the last array that lies in it


class _Children:
    """How the children stand, for whoever keeps the state of the batch."""

    def __init__(self, batch: Isolated) -> None:
        self._batch = batch

    def get_state(self) -> list[bytes]:
        """What each child writes down of itself."""
        return [self._batch.tell(row) for row in range(self._batch.size)]

    def set_state(self, data: list[bytes]) -> None:
        """Let each child go on from what another said."""
        for row, state in zip(range(self._batch.size), data, strict=True):
            self._batch.take(row, state)
