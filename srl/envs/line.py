"""The line from a batch of isolated environments to their zygote and, through it, to its children.

    to the zygote       numbers over a socket; the builder and the shared memory as descriptors
    to a child          its eventfd; its row of the shared memory; a letter
    from all of them    records in one pipe; rows of the shared memory; letters; the stack of a crash

A letter is what one child at a time reads or writes: how its environment stands. It is plain data, as is all that comes
from children. This module must not know what is said over it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import cloudpickle
import msgspec

from srl.envs import zygote
from srl.envs.zygote import ENDED, MESSAGE, RECORD, Outline
from srl.errors import UserError
from srl.processes import allow_descriptors

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


class Line:
    """The zygote, and what leads to it and to its children."""

    def __init__(self, build: Callable[[int], EnvBatch], size: int, name: str) -> None:
        if not hasattr(os, "eventfd"):
            raise UserError(f"{name}: environments in processes of their own need Linux")
        self._name = name
        self._size = size
        allow_descriptors(size, f"{name}: {size} environments in processes of their own")
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
                zygote.write_whole(self._builder, cloudpickle.dumps(build))
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
        raise RuntimeError(f"{self._name}: the process that keeps the environments {end_of(status)}")

    def describe(self, seconds: float) -> Outline:
        """What one environment looks like, as a child says that ends at once."""
        self.send(zygote.DESCRIBE)
        until = time.monotonic() + seconds
        records: list[tuple[int, int, int, int]] = []
        while not records:
            if time.monotonic() >= until:
                raise UserError(f"{self._name}: building an environment takes longer than {seconds:g} s")
            records = list(self.hear(until - time.monotonic()))
        said = zygote.told(self._answer) or {"error": end_of(records[0][3]) + self.stack(0)}
        if "user_error" in said:
            raise UserError(said["user_error"])
        if "error" in said:
            raise RuntimeError(f"{self._name}: an environment cannot be built: {said['error']}")
        return Outline.from_plain(said["outline"])

    def letter(self) -> bytes:
        """What a child has written down to be read."""
        return zygote.whole(self._answer)

    def send_letter(self, data: bytes) -> None:
        """Write down what a child is to read."""
        zygote.write_whole(self._answer, data)

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
        # What Python had loaded says nothing; the stack comes before.
        return f"\n{text.decode(errors='replace').partition('Extension modules:')[0].rstrip()}" if text else ""

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


def end_of(status: int) -> str:
    """How a process ended, in words."""
    if status >= zygote.NOT_STARTED:
        return f"could not be started: {os.strerror(status - zygote.NOT_STARTED)}"
    if status >= 0:
        return f"ended with exit code {status}"
    return f"was killed by {next((known.name for known in signal.Signals if known == -status), f'signal {-status}')}"
