"""The zygote: a small process that forks one child for each environment, buries them, and says how they ended.

    parent --start this row--> zygote --fork--> child
    parent --its row of shared memory, eventfd--> child --its row of shared memory, record--> parent
    zygote --record of a child's end--> parent                             one pipe for all records

It imports what environments need and runs nothing with it, has no thread and so can be forked at any time: a child
starts in milliseconds. There is at most one child for each row, and the next one starts when the last one is buried. A
child dies with the zygote, the zygote with its parent, and before that thread of it ends in which it was started.

    waits      for                               unblocked by
    zygote     a message; the end of a child     the parent; the kernel
    child      its eventfd                       the parent

What the parent sends besides numbers is its own builder, over memory that nobody else has. What children say is
numbers, text and plain data, because nobody should have to trust an environment. This module must not know what is done
with what environments give.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle
import msgspec
import numpy as np

from srl.envs.faults import of_exception
from srl.envs.kept import put_back, state_of, why_not
from srl.envs.state import from_bytes, to_bytes
from srl.errors import UserError
from srl.processes import die_with
from srl.tree import Layout, Spec, SpecTree, batched, index, spec_from_plain, spec_to_plain

if TYPE_CHECKING:
    from srl.envs.base import EnvBatch

MESSAGE = struct.Struct("=III")
"""To the zygote: what to do, row, life."""
RECORD = struct.Struct("=IIIi")
"""To the parent: row, life, what happened, exit status."""
DESCRIBE, START, MEMORY = range(3)
READY, FAILED, ENDED = range(3)
RESET, STEP, CLOSE, TELL, TAKE = range(5)
NOT_STARTED = 1000
"""More than any exit status; what is above it is the system's error number."""
TEXT_BYTES = 16_384
CRASH_BYTES = 65_536
"""Room for the stack of one child that crashes."""


@dataclass(frozen=True)
class Outline:
    """What environments look like; of these each child has one row."""

    obs: SpecTree
    action: SpecTree
    mask: SpecTree | None
    frames_per_step: int
    scored: bool

    def layout(self, size: int) -> Layout:
        """The memory that parent and children share."""
        flag, number = Spec((), "bool"), Spec((), "float32")
        rows: dict[str, Any] = {"obs": self.obs, "reward": number, "terminated": flag, "truncated": flag}
        if self.mask is not None:
            rows["mask"] = self.mask
        if self.scored:
            rows |= {"score": number, "game_over": flag}
        whole = Spec((), "int64")
        asked = {"what": whole, "seed": whole, "text": Spec((TEXT_BYTES,), "uint8"), "kind": Spec((16,), "uint8")}
        return Layout(batched({"out": rows, "action": self.action, **asked}, size))

    def to_plain(self) -> dict[str, Any]:
        """Plain data."""
        specs = {name: spec_to_plain(getattr(self, name)) for name in _SPECS}
        return {**specs, "frames_per_step": self.frames_per_step, "scored": self.scored}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Outline:
        """What plain data describes."""
        return cls(**{name: spec_from_plain(value) if name in _SPECS else value for name, value in data.items()})


_SPECS = ("obs", "action", "mask")


def told(fd: int) -> dict[str, Any]:
    """What the child that was asked to describe an environment has said; nothing if it could not."""
    data = whole(fd)
    return msgspec.msgpack.decode(data) if data else {}


class Zygote:
    """Forks on its parent's word."""

    def __init__(self, line: int, builder: int, answer: int, crash: int, pipe: int, wakes: list[int]) -> None:
        self._line = socket.socket(fileno=line)
        self._line.setblocking(False)
        self._builder, self._answer, self._crash, self._pipe, self._wakes = builder, answer, crash, pipe, wakes
        self._build: Callable[[int], EnvBatch] | None = None
        self._shared: Any = None
        self._pid = os.getpid()
        self._children: dict[int, tuple[int, int]] = {}
        """Row and life of each process."""
        self._next: dict[int, int] = {}
        """The life of each row that starts when the one before it is buried."""
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the parent is gone."""
        poll = select.poll()
        for fd in (self._line.fileno(), self._wake_reader):
            poll.register(fd, select.POLLIN)
        with contextlib.suppress(ConnectionError):
            while True:
                poll.poll()
                self._bury()
                while self._heard():
                    pass
        for pid in self._children:
            _end_group(pid)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _heard(self) -> bool:
        """Obey one message, if there is one; ConnectionError when the parent is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._line, MESSAGE.size, 1)
        except BlockingIOError:
            return False
        if not data:
            raise ConnectionResetError
        what, row, life = MESSAGE.unpack(data)
        if what == MEMORY:
            self._map(fds[0])
        elif what == DESCRIBE:
            self._fork(row, life, self._describe)
        else:
            self._replace(row, life)
        return True

    def _map(self, fd: int) -> None:
        said = told(self._answer)
        layout = Outline.from_plain(said["outline"]).layout(len(self._wakes))
        self._shared = layout.view(mmap.mmap(fd, layout.nbytes))
        os.close(fd)
        for module in said["modules"]:
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        self._build = cloudpickle.loads(whole(self._builder))
        # A collection of garbage writes to all that it looks at: each child would get a copy of what is imported here.
        gc.freeze()

    def _replace(self, row: int, life: int) -> None:
        """End the child of a row, and start the next when the last one is buried."""
        self._next[row] = life
        there = [pid for pid, (whose, _) in self._children.items() if whose == row]
        if there:
            _end_group(there[0])
        else:
            self._start(row)

    def _start(self, row: int) -> None:
        life = self._next.pop(row)
        self._fork(row, life, lambda: self._live(row, life))

    def _fork(self, row: int, life: int, run: Callable[[], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell_end(row, life, NOT_STARTED + (error.errno or 0))
            return
        if pid == 0:
            self._become_child(row, run)
        # A group of its own, so that what an environment has started itself ends with it; said by both, as either may
        # be first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._children[pid] = (row, life)

    def _tell_end(self, row: int, life: int, status: int) -> None:
        os.write(self._pipe, RECORD.pack(row, life, ENDED, status))

    def _become_child(self, row: int, run: Callable[[], None]) -> NoReturn:
        die_with(self._pid)
        os.setpgid(0, 0)
        # A descriptor with a position of its own, where the stack of a crash is written.
        crash = os.open(f"/proc/self/fd/{self._crash}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(crash, row * CRASH_BYTES, os.SEEK_SET)
        faulthandler.enable(crash)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in (self._wake_reader, self._wake_writer):
            os.close(fd)
        self._line.close()
        with contextlib.suppress(BaseException):
            run()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._children:
            # Looked at before it is buried: until then nobody else can have its number.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            if ended.si_pid in self._children:
                _end_group(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if ended.si_pid in self._children:
                row, life = self._children.pop(ended.si_pid)
                self._tell_end(row, life, os.waitstatus_to_exitcode(status))
                if row in self._next:
                    self._start(row)

    # What follows runs in a child.

    def _describe(self) -> None:
        """Build one environment and say what it looks like, and what had to be imported for it."""
        before = set(sys.modules)
        try:
            batch: EnvBatch = cloudpickle.loads(whole(self._builder))(0)
            outline = Outline(batch.obs, batch.action, batch.mask, batch.frames_per_step, batch.scored)
            batch.close()
            modules = [name for name in sys.modules if name not in before]
            said: dict[str, Any] = {"outline": outline.to_plain(), "modules": modules}
        except UserError as error:
            said = {"user_error": of_exception(error)[1]}
        except BaseException as error:
            said = {"error": of_exception(error)[1]}
        write_whole(self._answer, msgspec.msgpack.encode(said))

    def _live(self, row: int, life: int) -> None:
        assert self._build is not None
        shared = index(self._shared, slice(row, row + 1))
        batch = None
        try:
            batch = self._build(row)
            ready = RECORD.pack(row, life, READY, 0)
            _serve(batch, shared, self._wakes[row], self._answer, lambda: os.write(self._pipe, ready))
        except BaseException as error:
            error.__notes__ = []  # they say which environment it is, of those in this process
            for name, said in zip(("kind", "text"), of_exception(error), strict=True):
                _write(shared[name][0], said)
            os.write(self._pipe, RECORD.pack(row, life, FAILED, 0))
        finally:
            if batch is not None:
                batch.close()


def _end_group(pid: int) -> None:
    """Kill a child, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def whole(fd: int) -> bytes:
    """All that an anonymous file holds."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def write_whole(fd: int, data: bytes) -> None:
    """Let an anonymous file hold this and nothing else."""
    os.ftruncate(fd, 0)
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], at)


def _serve(batch: EnvBatch, shared: Any, wake: int, letter: int, answer: Callable[[], object]) -> None:
    """Do what the parent says, until it says to close."""
    out, action, what = shared["out"], shared["action"], shared["what"]
    poll = select.poll()
    poll.register(wake, select.POLLIN)
    while poll.poll(0):
        os.eventfd_read(wake)  # it was meant for the child before this one
    _reset(batch, int(shared["seed"][0]), out)
    answer()
    while True:
        os.eventfd_read(wake)
        if what[0] == STEP:
            batch.step(action, out)
        elif what[0] == RESET:
            _reset(batch, int(shared["seed"][0]), out)
        elif what[0] == TELL:
            state = state_of(batch)
            write_whole(letter, to_bytes({"state": state} if state else {"why": why_not(batch)}))
        elif what[0] == TAKE:
            put_back(batch, from_bytes(whole(letter))["state"])
        else:
            return
        answer()


def _reset(batch: EnvBatch, seed: int, out: dict[str, Any]) -> None:
    # Whoever draws from a generator of the whole process would draw what all other children draw.
    random.seed(seed)
    np.random.seed(seed)
    batch.reset(seed, out)


def _write(target: Any, text: str) -> None:
    data = text.encode(errors="replace")[-len(target) :]
    target[:] = 0
    target[: len(data)] = np.frombuffer(data, np.uint8)


def read(source: Any) -> str:
    """The text that a child has written into its row."""
    return source.tobytes().rstrip(b"\0").decode(errors="replace")


def main(fds: list[int], parent: int) -> None:
    """Serve the process that started this one."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line, builder, answer, crash, pipe, *wakes = fds
    for fd in fds:
        os.set_inheritable(fd, False)
    Zygote(line, builder, answer, crash, pipe, wakes).serve()
