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

import contextlib
import math
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
import msgspec
import numpy as np

from srl.envs import zygote
from srl.envs.faults import Fault, Faults, Finite, Kind, Limits, break_rows, seed_after
from srl.envs.gym import seeds
from srl.envs.zygote import ENDED, FAILED, MESSAGE, RECORD, Outline
from srl.errors import UserError
from srl.tree import Array, Tree, copy_into, zeros

if TYPE_CHECKING:
    from srl.envs.base import EnvBatch

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CLOSE_SECONDS = 1.0
"""How long children may take to close their environments."""
BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from srl.envs.zygote import main
main(json.loads(sys.argv[2]), int(sys.argv[3]))
"""


class Isolated:
    """Environments that each live in a child process; `build(row)` makes a batch of one."""

    def __init__(self, build: Callable[[int], EnvBatch], size: int, name: str, limits: Limits | None = None) -> None:
        self.size = size
        self._limits = limits or Limits()
        self._faults = Faults(self._limits, name, size)
        self._line = _Line(build, size, name)
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
        for name in ("obs", "mask") if self.mask is not None else ("obs",):
            copy_into(out[name], self._out[name])
        copy_into(self._last, out["obs"])
        self._ended[:] = False

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; the other rows begin a new one."""
        copy_into(self._shared["action"], action)
        self._shared["what"][:] = zygote.STEP
        self._failed.clear()
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
            self._fail(row, "died", _end(status) + self._line.stack(row))
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


class _Line:
    """The zygote, and what leads to it and to its children."""

    def __init__(self, build: Callable[[int], EnvBatch], size: int, name: str) -> None:
        if not hasattr(os, "eventfd"):
            raise UserError(f"{name}: environments in processes of their own need Linux")
        self._name = name
        self._size = size
        with contextlib.ExitStack() as held:
            try:
                self._open(build, held)
            except OSError as error:
                raise UserError(f"{name}: {size} environments cannot have processes of their own: {error}") from error
            self._held = held.pop_all()
        self._poll = select.poll()
        for fd in (self._reader, self._socket.fileno()):
            self._poll.register(fd, select.POLLIN)

    def _open(self, build: Callable[[int], EnvBatch], held: contextlib.ExitStack) -> None:
        """Start the zygote; what is opened here is given back with `held`."""

        def kept(fd: int) -> int:
            held.callback(os.close, fd)
            return fd

        self._builder, self._answer, self._crash = (kept(os.memfd_create("srl-envs")) for _ in range(3))
        self._wakes = [kept(os.eventfd(0)) for _ in range(self._size)]
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        kept(self._reader)
        with os.fdopen(writer, "wb"):
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(self._socket)
            with theirs:
                _write_all(self._builder, cloudpickle.dumps(build))
                fds = [theirs.fileno(), self._builder, self._answer, self._crash, writer, *self._wakes]
                texts = [msgspec.json.encode(part).decode() for part in (sys.path, fds, os.getpid())]
                environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
                command = [sys.executable, "-c", BOOT, *texts]
                self._process = subprocess.Popen(command, pass_fds=fds, env=environment, stdin=subprocess.DEVNULL)

    def send(self, what: int, row: int = 0, life: int = 0) -> None:
        """Say something to the zygote."""
        try:
            self._socket.send(MESSAGE.pack(what, row, life))
        except OSError:
            self._died()

    def wake(self, row: int) -> None:
        """Let a child look at its row."""
        os.eventfd_write(self._wakes[row], 1)

    def hear(self, seconds: float) -> Iterable[tuple[int, int, int, int]]:
        """What children and zygote have recorded, at the latest after so long: row, life, what, exit status."""
        for fd, _ in self._poll.poll(max(0, math.ceil(seconds * 1000))):
            if fd == self._reader and (data := os.read(fd, RECORD.size * 4096)):
                return RECORD.iter_unpack(data)
            self._died()
        return ()

    def _died(self) -> None:
        status = self._process.wait()
        raise RuntimeError(f"{self._name}: the process that keeps the environments {_end(status)}")

    def describe(self, seconds: float) -> Outline:
        """What one environment looks like, as a child says that ends at once."""
        self.send(zygote.DESCRIBE)
        until = time.monotonic() + seconds
        records: list[tuple[int, int, int, int]] = []
        while not records:
            if time.monotonic() >= until:
                raise UserError(f"{self._name}: building an environment takes longer than {seconds:g} s")
            records = list(self.hear(until - time.monotonic()))
        data = zygote.whole(self._answer)
        told: dict[str, Any] = pickle.loads(data) if data else {"error": _end(records[0][3]) + self.stack(0)}
        if "user_error" in told:
            raise UserError(told["user_error"])
        if "error" in told:
            raise RuntimeError(f"{self._name}: an environment cannot be built: {told['error']}")
        return told["outline"]

    def share(self, outline: Outline) -> dict[str, Any]:
        """The memory that the children will work in."""
        layout = outline.layout(self._size)
        fd = os.memfd_create("srl-envs", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, layout.nbytes)
            memory = mmap.mmap(fd, layout.nbytes)
            socket.send_fds(self._socket, [MESSAGE.pack(zygote.MEMORY, 0, 0)], [fd])
        finally:
            os.close(fd)
        return layout.view(memory)

    def stack(self, row: int) -> str:
        """Where a child was when it crashed, as far as it could still say."""
        at = row * zygote.CRASH_BYTES
        text = os.pread(self._crash, zygote.CRASH_BYTES, at).rstrip(b"\0")
        os.pwrite(self._crash, bytes(len(text)), at)
        return f"\n{text.decode(errors='replace')}" if text else ""

    def part(self, alive: set[int]) -> None:
        """Wait for these children to end, as long as closing may take."""
        until = time.monotonic() + CLOSE_SECONDS
        with contextlib.suppress(RuntimeError):  # the zygote is gone, and they with it
            while alive and time.monotonic() < until:
                alive -= {row for row, _, what, _ in self.hear(until - time.monotonic()) if what == ENDED}

    def close(self) -> None:
        """End the zygote, and with it all children."""
        self._socket.close()
        try:
            self._process.wait(5 * CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._held.close()


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def _end(status: int) -> str:
    if status >= zygote.NOT_STARTED:
        return f"could not be started: {os.strerror(status - zygote.NOT_STARTED)}"
    if status >= 0:
        return f"ended with exit code {status}"
    return f"was killed by {next((known.name for known in signal.Signals if known == -status), f'signal {-status}')}"
