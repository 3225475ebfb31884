"""One process per worker on this machine.

    control --exec--> nursery --fork--> worker, worker, ...

The nursery is a fresh interpreter that has loaded what every worker needs and does nothing else, so a worker starts in
milliseconds and shares its pages. Memory and channels are made here and handed down as descriptors. Each child asks the
kernel to be killed when its parent dies, so whatever happens to control, nothing of the run outlives it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import msgspec

from srl import processes
from srl.errors import UserError
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.base import Event, Look, WorkerFailed
from srl.launchers.plan import Resource, Site, Task
from srl.memory import Address, Listener, Memory
from srl.processes import allow_descriptors
from srl.runs import Run
from srl.streams.base import Shapes
from srl.workers.beat import Beat, ages_of

FDS_PER_MESSAGE = 200
"""The kernel passes at most 253 descriptors in one message."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")
"""Libraries that would start a thread or a process per core in every worker; each worker sets torch's own count."""

BOOT = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from srl.launchers.nursery import main
main(int(sys.argv[2]), int(sys.argv[3]))
"""


class LocalLauncher:
    """Starts workers through a nursery, and hears of their ends from it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
        path = msgspec.json.encode(sys.path).decode()
        command = [sys.executable, "-c", BOOT, path, str(theirs.fileno()), str(os.getpid())]
        with theirs:
            # A session of its own, so that Ctrl-C reaches control alone, which then ends the run in order.
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._socket = ours
        self._nursery = Connection(os.dup(ours.fileno()))
        self._lines: dict[Task, Connection] = {}
        self._alive: set[Task] = set()
        self._order: list[Task] = []
        self._pids: dict[Task, int] = {}
        self._needs: list[plan.Need] = []
        self._experiment: Experiment | None = None
        self._resources: dict[str, Resource] = {}
        self._setting: dict[str, Any] = {}

    def describe(self, experiment: Experiment) -> dict[str, Shapes]:
        """The shapes of every policy, found in a child of the nursery that ends at once."""
        self._nursery.send_bytes(cloudpickle.dumps({"do": "describe", "experiment": experiment}))
        try:
            answer: dict[str, Any] = msgspec.msgpack.decode(self._nursery.recv_bytes())
        except (EOFError, OSError):
            raise WorkerFailed("the process that starts workers died while it looked at the environment") from None
        if "user_error" in answer:
            raise UserError(answer["user_error"])
        if "error" in answer:
            raise WorkerFailed(answer["error"], answer.get("traceback", ""))
        return {name: Shapes.from_plain(shapes) for name, shapes in answer["shapes"].items()}

    def start(self, experiment: Experiment, shapes: dict[str, Shapes], run: Run, *, resume: bool) -> list[Task]:
        """Make all memory and channels, and have every worker started."""
        doors = self.prepare(experiment, shapes, run, resume=resume, site=Site())
        keys = None
        if any(policies.act == "net" for policies in experiment.policies.values()):
            from srl.wire import Keys

            keys = Keys.new()
        self.meet(doors, keys)
        for task in self._order:
            self.replace(task, life=0, epoch=0)
        return []

    def prepare(
        self, experiment: Experiment, shapes: dict[str, Shapes], run: Run, *, resume: bool, site: Site
    ) -> dict[str, Address]:
        """Make all that the workers of a site need; the addresses of its doors by their names."""
        self._experiment, self._needs = experiment, plan.needs_of(experiment, shapes, site)
        self._order = plan.tasks_at(experiment, site)
        descriptors = sum(need.descriptors for need in self._needs) + 2 * len(self._order)
        allow_descriptors(descriptors, f"a run of {len(self._order)} workers")
        self._resources = plan.make_all(self._needs)
        self._setting = {"experiment": experiment, "shapes": shapes, "folder": run.path, "resume": resume, "site": site}
        return {name: one.address for name, one in self._resources.items() if isinstance(one, Listener)}

    def meet(self, doors: dict[str, Address], keys: Any) -> None:
        """Workers that start from now on find those of other hosts behind these doors."""
        self._nursery.send_bytes(cloudpickle.dumps({"do": "prepare", **self._setting, "doors": doors, "keys": keys}))

    def replace(self, task: Task, *, life: int, epoch: int) -> bool:
        """Start the life of a worker; of one that is dead, the next."""
        assert self._experiment is not None
        needs = plan.needed_by(task, self._experiment, self._needs)
        ours, theirs = socket.socketpair()
        fds = [theirs.fileno(), *(fd for need in needs for fd in self._resources[need.name].fds())]
        row = self._order.index(task)
        beats = self._resources[plan.BEATS]
        assert isinstance(beats, Memory)
        Beat(beats, row).forget()
        message = {"do": "start", "task": task, "row": row, "needs": needs, "fds": len(fds)}
        message |= {"life": life, "epoch": epoch}
        self._nursery.send_bytes(cloudpickle.dumps(message))
        for at in range(0, len(fds), FDS_PER_MESSAGE):
            socket.send_fds(self._socket, [b"f"], fds[at : at + FDS_PER_MESSAGE])
        theirs.close()
        if task in self._lines:
            self._lines[task].close()
        self._lines[task] = Connection(ours.detach())
        self._alive.add(task)
        return True

    def poll(self, seconds: float) -> list[Event]:
        """What workers said, then who ended."""
        ready = wait([*self._lines.values(), self._nursery], seconds)
        events: list[Event] = []
        for task, line in list(self._lines.items()):
            if line in ready:
                events += self._hear(task, line)
        if self._nursery in ready:
            events += self._hear_of_ends()
        return events

    def _hear(self, task: Task, line: Connection) -> list[Event]:
        events: list[Event] = []
        try:
            while line.poll():
                events.append(Event(task, msgspec.msgpack.decode(line.recv_bytes())))
        except (EOFError, OSError):
            self._lines.pop(task).close()
        return events

    def _hear_of_ends(self) -> list[Event]:
        events: list[Event] = []
        try:
            while self._nursery.poll():
                end: dict[str, Any] = msgspec.msgpack.decode(self._nursery.recv_bytes())
                task = Task(**end["task"])
                if "pid" in end:
                    self._pids[task] = end["pid"]
                    continue
                self._pids.pop(task, None)
                self._alive.discard(task)
                # What it said last may still be on its line.
                if task in self._lines:
                    events += self._hear(task, self._lines[task])
                events.append(Event(task, {"kind": "exit", "status": end["status"]}))
        except (EOFError, OSError):
            raise WorkerFailed(f"the process that starts workers was {_say_end(self._process.wait())}") from None
        return events

    def tell(self, task: Task, message: dict[str, Any]) -> None:
        """Say something to a worker; to one that is gone, nothing."""
        line = self._lines.get(task)
        if line is not None:
            try:
                line.send_bytes(msgspec.msgpack.encode(message))
            except OSError:
                self._lines.pop(task).close()

    def look(self, *, memory: bool) -> dict[Task, Look]:
        """How each living worker is."""
        beats = self._resources.get(plan.BEATS)
        if not isinstance(beats, Memory):
            return {}
        ages = dict(zip(self._order, ages_of(beats), strict=True))
        return {
            task: Look(ages[task], processes.is_stopped(pid), processes.memory(pid) if memory else 0)
            for task, pid in self._pids.items()
            if task in self._alive
        }

    def kill(self, task: Task) -> None:
        """End a worker at once; its end is heard of like any other."""
        self._nursery.send_bytes(cloudpickle.dumps({"do": "kill", "task": task}))

    def relays(self, task: Task) -> list[Task]:
        """Here nobody needs one."""
        return []

    def stop(self, patience: float) -> None:
        """Close every worker and give the memory back, but stay able to start them again."""
        self._ask_to_close(patience)
        if self._alive:
            self._nursery.send_bytes(cloudpickle.dumps({"do": "kill", "task": None}))
            while self._alive:
                self.poll(1.0)
        self._give_back()

    def close(self, patience: float) -> None:
        """Ask every worker to close, wait, then kill what is left, the nursery last."""
        self._ask_to_close(patience)
        # Its children ask the kernel to die with it.
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._give_back()
        for line in (self._nursery, self._socket):
            line.close()

    def _ask_to_close(self, patience: float) -> None:
        for task in list(self._lines):
            self.tell(task, {"do": "close"})
        until = time.monotonic() + patience
        try:
            while self._alive and time.monotonic() < until:
                self.poll(max(0.0, until - time.monotonic()))
        except WorkerFailed:
            pass

    def _give_back(self) -> None:
        for held in [*self._lines.values(), *self._resources.values()]:
            held.close()
        self._lines.clear()
        self._resources.clear()


def _say_end(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
