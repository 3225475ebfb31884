"""The nursery: a small process that forks workers, buries them, and tells control.

It loads torch once and never runs anything with it, holds no thread and no lock, and so can be forked at any time.
It believes its parent, who speaks to it over an inherited socket, and nobody else. What it answers is plain data.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import os
import select
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import cloudpickle
import msgspec
import torch

from srl.errors import Closed, UserError
from srl.launchers import build
from srl.launchers.plan import BEATS, Need, Resource, Task
from srl.launchers.shapes import describe
from srl.memory import Memory
from srl.processes import allow_descriptors, die_with
from srl.runs import Run
from srl.workers.base import run as run_worker
from srl.workers.beat import Beat


class Line:
    """A worker's line to control."""

    def __init__(self, fd: int) -> None:
        self._connection = Connection(fd)

    def send(self, message: dict[str, Any]) -> None:
        """Tell control; when control is gone, the run is over."""
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            raise Closed from None

    def receive(self) -> list[dict[str, Any]]:
        """What control has said since."""
        messages: list[dict[str, Any]] = []
        try:
            while self._connection.poll():
                messages.append(msgspec.msgpack.decode(self._connection.recv_bytes()))
        except (EOFError, OSError):
            raise Closed from None
        return messages

    def fds(self) -> list[int]:
        """Readable when control has said something, or is gone."""
        return [self._connection.fileno()]


class Nursery:
    """Forks on control's word."""

    def __init__(self, fd: int) -> None:
        self._pid = os.getpid()
        self._socket = socket.socket(fileno=fd)
        self._control = Connection(os.dup(fd))
        self._children: dict[int, Task] = {}
        self._setting: dict[str, Any] = {}
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until control is gone."""
        poll = select.poll()
        for fd in (self._control.fileno(), self._wake_reader):
            poll.register(fd, select.POLLIN)
        with contextlib.suppress(EOFError, OSError):
            while True:
                poll.poll()
                self._bury()
                while self._control.poll():
                    self._obey(cloudpickle.loads(self._control.recv_bytes()))

    def _obey(self, message: dict[str, Any]) -> None:
        if message["do"] == "describe":
            self._control.send_bytes(self._in_child(message["experiment"]))
        elif message["do"] == "prepare":
            self._setting = message
        elif message["do"] == "kill":
            self._kill(message["task"])
        else:
            self._start(message)

    def _kill(self, task: Task | None) -> None:
        """Kill a worker, or all; whoever has been buried already is left in peace."""
        for pid, child in self._children.items():
            if task in (child, None):
                os.kill(pid, signal.SIGKILL)

    def _in_child(self, experiment: Any) -> bytes:
        """Describe the experiment in a child, so that what it builds leaves no trace here."""
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            self._become_child()
            with os.fdopen(writer, "wb") as out:
                out.write(msgspec.msgpack.encode(_described(experiment)))
                out.flush()
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as answer:
            data = answer.read()
        _, status = os.waitpid(pid, 0)
        if data:
            return data
        end = f"died with status {status}" if status >= 256 else f"was killed by {signal.Signals(status).name}"
        return msgspec.msgpack.encode({"error": f"the process that first built the environment {end}"})

    def _start(self, message: dict[str, Any]) -> None:
        # The kernel would drop those for which there is no room, without a word.
        allow_descriptors(message["fds"], message["task"].name)
        fds: list[int] = []
        while len(fds) < message["fds"]:
            fds += socket.recv_fds(self._socket, 1, 256)[1]
        if (pid := os.fork()) == 0:
            self._become_child()
            _live({**self._setting, **message}, fds)
        for fd in fds:
            os.close(fd)
        self._children[pid] = message["task"]
        self._say(message["task"], pid=pid)

    def _become_child(self) -> None:
        die_with(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for fd in (self._wake_reader, self._wake_writer):
            os.close(fd)
        self._control.close()
        self._socket.close()

    def _bury(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            task = self._children.pop(pid)
            self._say(task, status=os.waitstatus_to_exitcode(status))

    def _say(self, task: Task, **what: int) -> None:
        self._control.send_bytes(msgspec.msgpack.encode({"task": task, **what}))


def _described(experiment: Any) -> dict[str, Any]:
    try:
        torch.set_num_threads(1)
        return {"shapes": {name: shapes.to_plain() for name, shapes in describe(experiment).items()}}
    except UserError as error:
        return {"user_error": str(error)}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def _attached(needs: list[Need], fds: list[int]) -> dict[str, Resource]:
    """The resources of a worker, from the descriptors it was given."""
    rest = iter(fds)
    return {need.name: need.make([next(rest) for _ in range(need.descriptors)]) for need in needs}


def _live(setting: dict[str, Any], fds: list[int]) -> NoReturn:
    """The whole life of a worker, in its own process."""
    code = 1
    line = Line(fds[0])
    task: Task = setting["task"]
    try:
        _redirect_output(Run(setting["folder"]), task)
        resources = _attached(setting["needs"], fds[1:])
        beats = resources[BEATS]
        assert isinstance(beats, Memory)
        beat = Beat(beats, setting["row"])
        named = {name: setting[name] for name in ("resume", "life", "epoch", "site", "doors", "keys")}
        builder = build.Builder(setting["experiment"], setting["shapes"], setting["folder"], **named)
        torch.set_num_threads(builder.threads(task))
        beat.touch()
        worker = builder.build(task, resources, line)
        line.send({"kind": "ready"})
        run_worker(worker, line, beat.touch)
        code = 0
    except Closed:
        code = 0
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        told = {"kind": "error", "error": f"{type(error).__name__}: {error}", "traceback": text}
        if isinstance(error, UserError):
            told = {"kind": "user_error", "error": " ".join([str(error), *getattr(error, "__notes__", [])])}
        with contextlib.suppress(Closed):
            line.send(told)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class _Log(io.FileIO):
    """A worker's log; what finds no room on the disk is left out, because nobody should die of a full log."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd, "w", closefd=False)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _redirect_output(run: Run, task: Task) -> None:
    """What a worker prints goes to its log, and so does the stack of a crash below Python."""
    log = os.open(run.logs / f"{task.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for fd in (1, 2):
        os.dup2(log, fd)
    os.close(log)
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BufferedWriter(_Log(fd)), line_buffering=True) for fd in (1, 2))
    faulthandler.enable()


def main(fd: int, control: int) -> None:
    """Serve the process that started this one, over this socket."""
    die_with(control)
    # A collection of garbage writes to all that it looks at: each worker would get a copy of what is imported here.
    gc.freeze()
    Nursery(fd).serve()
