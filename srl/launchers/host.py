"""The workers of a run that live on one host, for a launcher that is elsewhere.

    launcher --orders--> Host --nursery, pipes, memory--> workers
             <--events, how each worker is, their logs--

It is a local launcher that takes its orders from afar, all that there are at once, and answers with all that happened.
It must not know how orders reach it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from srl.errors import UserError
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.base import Event, Look
from srl.launchers.local import LocalLauncher
from srl.launchers.plan import Site, Task
from srl.memory import Address
from srl.runs import Run
from srl.streams.base import Shapes

LOG_BYTES = 1 << 16
"""What a worker printed is sent in pieces of at most so much."""

CAN_WAIT = ("clock", "progress")
"""What workers say every second; an answer for each would cost more the more workers there are."""

Order = tuple[str, Task, dict[str, Any]]
"""What to do, to whom, with what."""
Answer = tuple[list[Event], dict[Task, Look], dict[str, bytes]]
"""What happened, how each worker is, and what they printed where nobody else sees it."""


class Host:
    """Starts workers, passes on what they are told, and says what became of them."""

    def __init__(self, paths: Sequence[str] = ()) -> None:
        # What can be imported where the run was started can be imported here, if it is here.
        sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
        self._local = LocalLauncher()
        self._scratch: Path | None = None
        self._read: dict[Path, int] = {}
        self._number = 0
        self._answer: Answer = ([], {}, {})

    def describe(self, experiment: Experiment) -> dict[str, Shapes]:
        """The shapes of every policy, found here."""
        return self._local.describe(experiment)

    def prepare(
        self, experiment: Experiment, shapes: dict[str, Shapes], folder: Path, *, resume: bool, site: Site
    ) -> dict[str, Address]:
        """Make all that the workers of a site need; the addresses of its doors by their names."""
        run, shared = Run(folder), (folder / "experiment.yaml").exists()
        if not shared:
            _must_not_write(experiment, site, folder)
            self._scratch = Path(tempfile.mkdtemp(prefix="srl-"))
            run = Run(self._scratch)
            run.logs.mkdir()
        site = replace(site, shared=shared)
        return self._local.prepare(experiment, shapes, run, resume=resume and shared, site=site)

    def meet(self, doors: Mapping[str, Address], keys: Any) -> None:
        """Workers that start from now on find those of other hosts behind these doors."""
        self._local.meet(dict(doors), keys)

    def exchange(self, number: int, orders: Sequence[Order], seconds: float, *, memory: bool) -> Answer:
        """Do what is ordered, then say what happened within so long; asked by the same number, only say it again."""
        if number != self._number:
            self._obey(orders)
            self._answer = self._events(seconds), self._local.look(memory=memory), self._logs()
            self._number = number
        return self._answer

    def _obey(self, orders: Sequence[Order]) -> None:
        for what, task, message in orders:
            if what == "tell":
                self._local.tell(task, message)
            elif what == "kill":
                self._local.kill(task)
            else:
                self._local.replace(task, **message)

    def _events(self, seconds: float) -> list[Event]:
        """What happened, at once where it cannot wait."""
        until = time.monotonic() + seconds
        events = self._local.poll(seconds)
        while all(event.message["kind"] in CAN_WAIT for event in events) and (left := until - time.monotonic()) > 0:
            events += self._local.poll(left)
        return events

    def _logs(self) -> dict[str, bytes]:
        """What workers have printed since, where the run folder is not here."""
        new: dict[str, bytes] = {}
        for path in Run(self._scratch).logs.iterdir() if self._scratch else ():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                if text := file.read(LOG_BYTES):
                    new[path.name] = text
                    self._read[path] = file.tell()
        return new

    def close(self, patience: float) -> None:
        """Close every worker; nothing is left when this returns."""
        self._local.close(patience)
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)


def _must_not_write(experiment: Experiment, site: Site, folder: Path) -> None:
    """Where the run folder cannot be seen, only those may live who leave it alone."""
    for task in plan.tasks_at(experiment, site):
        if task.kind in ("trainer", "evaluator"):
            raise UserError(
                f"{task.name} on {site.address} does not see the run folder {folder}, and must write to it; "
                "give --runs a folder on storage that this host shares with the one you train from"
            )
