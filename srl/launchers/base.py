"""What a launcher promises: workers come to life, their messages arrive, and in the end nothing is left.

A message is a dict with "kind": clock, progress, evaluation, finished; the launcher itself says exit and error, and
silent, back and gone of those whose host cannot be reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from srl.experiment import Experiment
from srl.launchers.plan import Task
from srl.runs import Run
from srl.streams.base import Shapes


@dataclass(frozen=True, slots=True)
class Event:
    """Something a worker said, or that happened to it."""

    task: Task
    message: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """How a living worker is."""

    age: float
    """Seconds since it was last seen alive."""
    stopped: bool
    """Whether someone has stopped its process."""
    memory: int
    """Bytes of memory that it has, if they were asked for."""


class WorkerFailed(Exception):
    """A worker ended as it should not; the message says which and why, the text of its traceback is attached."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Launcher(Protocol):
    """Starts the workers of one run and carries what they say."""

    def describe(self, experiment: Experiment) -> dict[str, Shapes]:
        """The shapes of every policy, found where workers will live."""
        ...

    def start(self, experiment: Experiment, shapes: dict[str, Shapes], run: Run, *, resume: bool) -> list[Task]:
        """Start every worker; those for which there is no place yet."""
        ...

    def poll(self, seconds: float) -> list[Event]:
        """What happened, waiting at most so long for the first."""
        ...

    def tell(self, task: Task, message: dict[str, Any]) -> None:
        """Say something to a worker that lives."""
        ...

    def look(self, *, memory: bool) -> dict[Task, Look]:
        """How each living worker is that has a process of its own."""
        ...

    def replace(self, task: Task, *, life: int, epoch: int) -> bool:
        """Start the next life of a worker that is dead; False when there is no place for it now."""
        ...

    def kill(self, task: Task) -> None:
        """End a worker at once."""
        ...

    def relays(self, task: Task) -> list[Task]:
        """The relays through which a worker hears of its trainer, if that lives on another host."""
        ...

    def stop(self, patience: float) -> None:
        """Close every worker, but stay able to start them again."""
        ...

    def close(self, patience: float) -> None:
        """Close every worker; those that do not end in time are killed. Nothing is left when this returns."""
        ...
