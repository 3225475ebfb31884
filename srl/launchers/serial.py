"""Every worker stepped in turn, in this thread: for the debugger, for determinism, for tests.

The workers and edges are the same as everywhere; only nobody waits, because whoever has no work lets the next one go.
An exception leaves `poll` as it was raised, so a debugger stops where it happened.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from srl.errors import UserError
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.base import Event, Look, WorkerFailed
from srl.launchers.build import Builder
from srl.launchers.plan import Resource, Task
from srl.launchers.shapes import describe
from srl.runs import Run
from srl.streams.base import Shapes
from srl.workers.base import Turn

STUCK_SECONDS = 5.0
"""When no worker has had work for so long, none ever will."""


class _Link:
    """A worker's line to control: two queues."""

    def __init__(self, task: Task, events: deque[Event]) -> None:
        self._task = task
        self._events = events
        self.inbox: deque[dict[str, Any]] = deque()

    def send(self, message: dict[str, Any]) -> None:
        self._events.append(Event(self._task, message))

    def receive(self) -> list[dict[str, Any]]:
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def fds(self) -> list[int]:
        return []


class SerialLauncher:
    """One thread, one process, every worker."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._links: dict[Task, _Link] = {}
        self._turns: dict[Task, Turn] = {}
        self._threads: dict[Task, int] = {}
        self._resources: dict[str, Resource] = {}
        self._threads_before = torch.get_num_threads()
        self._busy_at = time.monotonic()

    def describe(self, experiment: Experiment) -> dict[str, Shapes]:
        """The shapes of every policy."""
        if any(trainers.count > 1 for trainers in experiment.trainers.values()):
            raise UserError("trainers in one thread cannot wait for each other; use --launcher local, or one trainer")
        return describe(experiment)

    def start(self, experiment: Experiment, shapes: dict[str, Shapes], run: Run, *, resume: bool) -> list[Task]:
        """Build every worker here."""
        if any(policies.act == "net" for policies in experiment.policies.values()):
            raise UserError("act='net' needs processes that answer by themselves; use act='shm', or --launcher local")
        self._resources = plan.make_all(plan.needs_of(experiment, shapes))
        builder = Builder(experiment, shapes, run.path, resume=resume)
        for task in plan.tasks_of(experiment):
            link = self._links[task] = _Link(task, self._events)
            self._threads[task] = builder.threads(task)
            torch.set_num_threads(self._threads[task])
            self._turns[task] = Turn(builder.build(task, self._resources, link), link, lambda: None)
        self._busy_at = time.monotonic()
        return []

    def poll(self, seconds: float) -> list[Event]:
        """Step the workers in turn until one has something to say, or for so long."""
        until = time.monotonic() + seconds
        while not self._events and time.monotonic() < until:
            worked = [self._step(task, turn) for task, turn in self._turns.items()]
            if any(worked):
                self._busy_at = time.monotonic()
            elif not self._events:
                self._idle()
        events = list(self._events)
        self._events.clear()
        return events

    def _step(self, task: Task, turn: Turn) -> bool:
        if torch.get_num_threads() != self._threads[task]:
            torch.set_num_threads(self._threads[task])
        if self._links[task].inbox:
            turn.attend(time.monotonic())
        turn.worker.clock.go_on()
        try:
            return turn.step()
        finally:
            turn.worker.clock.pause()

    def _idle(self) -> None:
        if time.monotonic() - self._busy_at > STUCK_SECONDS:
            waits = ", ".join(f"{task.name} ({turn.worker.waits})" for task, turn in self._turns.items())
            raise WorkerFailed(f"every worker waits for another: {waits}")

    def tell(self, task: Task, message: dict[str, Any]) -> None:
        """Say something to a worker."""
        self._links[task].inbox.append(message)

    def look(self, *, memory: bool) -> dict[Task, Look]:
        """No worker has a process of its own, and whoever looks is proof that all live."""
        return {}

    def replace(self, task: Task, *, life: int, epoch: int) -> bool:
        """In one thread nobody dies alone."""
        raise NotImplementedError

    def kill(self, task: Task) -> None:
        """In one thread nobody dies alone."""
        raise NotImplementedError

    def relays(self, task: Task) -> list[Task]:
        """Here nobody needs one."""
        return []

    def stop(self, patience: float) -> None:
        """Close every worker and give the memory back."""
        self.close(patience)

    def close(self, patience: float) -> None:
        """Close every worker and give the memory back."""
        for turn in self._turns.values():
            turn.worker.close()
        for resource in self._resources.values():
            resource.close()
        self._turns.clear()
        self._resources.clear()
        torch.set_num_threads(self._threads_before)
