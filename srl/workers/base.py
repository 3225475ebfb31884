"""The one loop: step, beat, report, wait, close.

    while not closed:   a worker steps while there is work; when there is none, the kernel wakes it for
                        its edges' descriptors, for control's word, or to show that it is alive

A worker knows its edges and its link to control, nothing of processes: the serial launcher calls `step` in turn, the
others run this loop where the worker lives.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, Protocol

from srl.errors import Closed
from srl.metrics import Clock

BEAT_SECONDS = 0.5
"""A worker shows that it is alive, and looks for control's word, at least so often between steps."""
REPORT_SECONDS = 1.0
"""A worker says where its time went so often."""


class Link(Protocol):
    """A worker's line to control."""

    def send(self, message: dict[str, Any]) -> None:
        """Tell control."""
        ...

    def receive(self) -> list[dict[str, Any]]:
        """What control has said since; raises Closed when control is gone."""
        ...

    def fds(self) -> list[int]:
        """Readable when control has said something."""
        ...


class Worker(Protocol):
    """One of the equal workers of a group."""

    clock: Clock

    @property
    def waits(self) -> str:
        """What it waits for when there is no work."""
        ...

    def step(self) -> bool:
        """Do one piece of work; False when there is none now."""
        ...

    def command(self, message: dict[str, Any]) -> None:
        """Do what control asks."""
        ...

    def fds(self) -> list[int]:
        """Descriptors that become readable when there may be work."""
        ...

    def close(self) -> None:
        """Give back what this worker holds."""
        ...


class Turn:
    """What surrounds every step of a worker: its beat, control's word, its report."""

    def __init__(self, worker: Worker, link: Link, touch: Callable[[], None]) -> None:
        self.worker = worker
        self._link = link
        self._touch = touch
        self._next_beat = 0.0
        self._next_report = time.monotonic() + REPORT_SECONDS

    def step(self) -> bool:
        """One step of the worker; raises Closed when control says so."""
        now = time.monotonic()
        if now >= self._next_beat:
            self.attend(now)
        return self.worker.step()

    def attend(self, now: float) -> None:
        """Beat, listen, report."""
        self._touch()
        self._next_beat = now + BEAT_SECONDS
        for message in self._link.receive():
            if message["do"] == "close":
                raise Closed
            self.worker.command(message)
        if now >= self._next_report:
            self._next_report = now + REPORT_SECONDS
            self._link.send({"kind": "clock", **self.worker.clock.collect()})


def run(worker: Worker, link: Link, touch: Callable[[], None]) -> None:
    """Run a worker until control closes it."""
    turn = Turn(worker, link, touch)
    poll = select.poll()
    for fd in [*worker.fds(), *link.fds()]:
        poll.register(fd, select.POLLIN)
    try:
        while True:
            if not turn.step():
                waits = worker.waits
                poll.poll(BEAT_SECONDS * 1000)
                worker.clock.lap(waits)
                turn.attend(time.monotonic())
    except Closed:
        pass
    finally:
        worker.close()
