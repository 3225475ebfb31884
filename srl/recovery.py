"""What happens when a worker dies: it is replaced under a new life number, or the run ends with the cause.

    actor       its trainer takes back what it was lent            both first say that they have;
    policy      the policy workers end an epoch: nothing asked     then the new life starts, and actors
                before is answered any more                        ask again whatever waits
    evaluator   nobody else has to know
    trainer     everything starts again from the last checkpoint (see control)

What raises would raise again, so only what was killed, ended by itself, stalled or outgrew its memory is replaced. This
module must not know what a run learns.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from srl import processes
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.base import Event, Launcher, WorkerFailed
from srl.launchers.plan import Task

STOPPED_SECONDS = 3.0
"""A worker that someone has stopped is given so long to be let go on."""
LOOK_SECONDS = 1.0
"""How often the processes of workers are looked at."""


class TrainerLost(Exception):
    """A trainer is dead; the run goes on from its last checkpoint."""


@dataclass
class Replacement:
    """A worker that is dead, and what must be heard before its next life starts."""

    task: Task
    waits: set[tuple[Task, str, int]] = field(default_factory=set[tuple[Task, str, int]])


class Recovery:
    """Replaces workers of one run."""

    def __init__(self, experiment: Experiment, launcher: Launcher) -> None:
        self._experiment = experiment
        self._launcher = launcher
        self._tasks = plan.tasks_of(experiment)
        self._lives: Counter[Task] = Counter()
        self._deaths: dict[Task, deque[float]] = {task: deque() for task in self._tasks}
        self._epochs: Counter[str] = Counter()
        self._pending: list[Replacement] = []
        self._causes: dict[Task, str] = {}
        self._next_look = 0.0
        self.count = 0
        """Workers replaced so far."""

    def died(self, task: Task, how: str) -> str:
        """Begin to replace a worker; what happened, in words. WorkerFailed when it has died too often."""
        cause = f"{task.name} {self._causes.pop(task, how)}"
        self._count(task, cause)
        if task.kind == "trainer":
            raise TrainerLost(cause)
        for other in self._pending:
            other.waits = {wait for wait in other.waits if wait[0] != task}
        replacement = Replacement(task)
        if task.kind == "actor":
            self._reclaim(replacement)
        policy = self._policy(task)
        if task.kind != "evaluator" and self._experiment.policies[policy].act != "inline":
            self._end_epoch(replacement, policy)
        self._pending.append(replacement)
        return cause

    def _count(self, task: Task, cause: str) -> None:
        limits, deaths, now = self._experiment.restarts, self._deaths[task], time.monotonic()
        while deaths and deaths[0] < now - limits.window:
            deaths.popleft()
        if len(deaths) >= limits.limit:
            often = f", {len(deaths) + 1} times in {limits.window:.0f} s" if limits.limit else ""
            raise WorkerFailed(f"{cause}{often}")
        deaths.append(now)
        self._lives[task] += 1
        self.count += 1

    def _reclaim(self, replacement: Replacement) -> None:
        stream = self._experiment.actors[replacement.task.group].train or ""
        at = plan.train_actors(self._experiment, stream).index(replacement.task)
        trainer = plan.rank_of(self._experiment, stream, replacement.task)
        self._launcher.tell(trainer, {"do": "reclaim", "actor": at})
        replacement.waits.add((trainer, "reclaimed", at))

    def _end_epoch(self, replacement: Replacement, policy: str) -> None:
        self._epochs[policy] += 1
        dead = {replacement.task, *(other.task for other in self._pending)}
        for task in self._tasks:
            if task.kind == "policy" and task.group == policy and task not in dead:
                self._launcher.tell(task, {"do": "epoch", "epoch": self._epochs[policy]})
                replacement.waits.add((task, "epoch", self._epochs[policy]))

    def _policy(self, task: Task) -> str:
        return task.group if task.kind == "policy" else self._experiment.actors[task.group].policy

    def heard(self, event: Event) -> None:
        """Somebody says that they have done their part."""
        kind = event.message["kind"]
        number = event.message["epoch" if kind == "epoch" else "actor"]
        for replacement in self._pending:
            replacement.waits.discard((event.task, kind, number))

    def turn(self) -> list[Task]:
        """Start the next lives once everyone has done their part; who lives again."""
        self._look()
        if not self._pending or any(replacement.waits for replacement in self._pending):
            return []
        tasks = [replacement.task for replacement in self._pending]
        self._pending = []
        for task in tasks:
            self._launcher.replace(task, life=self._lives[task], epoch=self._epochs[self._policy(task)])
        for policy in {self._policy(task) for task in tasks if task.kind != "evaluator"}:
            for asker in plan.act_actors(self._experiment, policy):
                if asker not in tasks and self._epochs[policy]:
                    self._launcher.tell(asker, {"do": "epoch", "epoch": self._epochs[policy]})
        return tasks

    def kill(self, task: Task, cause: str) -> None:
        """End a worker that lives but is of no use; it dies of this cause."""
        self._causes[task] = cause
        self._launcher.kill(task)

    def _look(self) -> None:
        """End workers that do not live as they should, so that they can be replaced."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        pids, limit = self._launcher.pids(), self._experiment.restarts.memory
        for task, age in self._launcher.ages().items():
            if task in self._causes or task not in pids:
                continue
            if age > self._experiment.stall_seconds:
                advice = "if its work takes so long, raise stall_seconds"
                self.kill(task, f"has shown no sign of life for {age:.0f} s; {advice}")
            elif age > STOPPED_SECONDS and processes.is_stopped(pids[task]):
                self.kill(task, "was stopped and not let go on")
            elif limit is not None and (used := processes.memory(pids[task])) > limit * 2**20:
                self.kill(task, f"used {used / 2**20:,.0f} MiB of memory, {limit:,} are allowed")

    def forget(self) -> None:
        """Everything starts anew; only the deaths still count."""
        self._pending, self._causes = [], {}
        self._epochs.clear()
