"""What happens when a worker dies: it is replaced under a new life number, or the run ends with the cause.

    actor       its trainer takes back what it was lent            both first say that they have;
    policy      the policy workers end an epoch: nothing asked     then the new life starts, and actors
                before is answered any more                        ask again whatever waits
    evaluator   nobody else has to know
    trainer     everything starts again from the last checkpoint (see control)
    relay       those whom it serves go with it

Where a host is lost, its workers are dead until the launcher has another place for them; the others go on meanwhile.
While a host is only silent, nothing more is lent to its actors.

What raises would raise again, so only what was killed, ended by itself, stalled or outgrew its memory is replaced. This
module must not know what a run learns.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

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
        self._deaths: defaultdict[Task, deque[float]] = defaultdict(deque)
        self._epochs: Counter[str] = Counter()
        self._pending: list[Replacement] = []
        self._homeless: list[Task] = []
        self._absent: set[Task] = set()
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
        self._let_go(task)
        replacement = Replacement(task)
        if task.kind == "relay":
            for served in self._tasks:
                if task in self._launcher.relays(served):
                    self.kill(served, f"lost its relay, {task.name}")
        if task.kind == "actor":
            self._reclaim(replacement)
        policy = self._policy(task)
        if task.kind in ("actor", "policy") and self._experiment.policies[policy].act != "inline":
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
        at = self._tell_lenders(replacement.task, "reclaim")
        replacement.waits |= {(task, "reclaimed", at) for task in self._lenders(replacement.task)}

    def _tell_lenders(self, actor: Task, what: str) -> int:
        """Say what is to be done with the credits of an actor; its number in the stream."""
        if what == "reclaim":
            self._absent.add(actor)
        at = plan.train_actors(self._experiment, self._stream(actor)).index(actor)
        for task in self._lenders(actor):
            self._launcher.tell(task, {"do": what, "actor": at})
        return at

    def _stream(self, actor: Task) -> str:
        return self._experiment.actors[actor.group].train or ""

    def _lenders(self, actor: Task) -> list[Task]:
        """The trainer that lends to an actor, and the relay that passes it on."""
        trainer = plan.rank_of(self._experiment, self._stream(actor), actor)
        return [trainer, *(relay for relay in self._launcher.relays(actor) if relay.group == trainer.group)]

    def _end_epoch(self, replacement: Replacement, policy: str) -> None:
        self._epochs[policy] += 1
        dead = {replacement.task, *(other.task for other in self._pending)}
        for task in self._tasks:
            if task.kind == "policy" and task.group == policy and task not in dead:
                self._launcher.tell(task, {"do": "epoch", "epoch": self._epochs[policy]})
                replacement.waits.add((task, "epoch", self._epochs[policy]))

    def _policy(self, task: Task) -> str:
        return plan.policy_of(self._experiment, task)

    def heard(self, event: Event) -> None:
        """Somebody says that they have done their part; or a host cannot be reached, or can again."""
        kind = event.message["kind"]
        if kind in ("silent", "back"):
            self._pause(event.task, kind)
            return
        if kind == "gone":
            self._let_go(event.task)
            return
        if kind == "ready":
            # Not before, because the others would wait for what it is lent.
            if event.task.kind == "actor" and event.task in self._absent:
                self._absent.discard(event.task)
                self._tell_lenders(event.task, "join")
            return
        number = event.message["epoch" if kind == "epoch" else "actor"]
        for replacement in self._pending:
            replacement.waits.discard((event.task, kind, number))

    def _pause(self, task: Task, kind: str) -> None:
        """The actor lives, so its relay does not take back what it may be filling; that will only be worth nothing."""
        if task.kind == "actor":
            at = plan.train_actors(self._experiment, self._stream(task)).index(task)
            lenders = self._lenders(task)[: 1 if kind == "silent" else None]
            for lender in lenders:
                self._launcher.tell(lender, {"do": "reclaim" if kind == "silent" else "join", "actor": at})

    def _let_go(self, task: Task) -> None:
        """Nobody waits any more for what this worker would have done."""
        self._pending = [other for other in self._pending if other.task != task]
        for other in self._pending:
            other.waits = {wait for wait in other.waits if wait[0] != task}

    def wait_for_place(self, tasks: list[Task]) -> None:
        """These workers have never lived; they will when there is a place for them."""
        self._homeless += tasks
        for task in tasks:
            if task.kind == "actor":
                self._tell_lenders(task, "reclaim")

    def turn(self) -> list[Task]:
        """Start the next lives once everyone has done their part; who lives again."""
        self._look()
        placed = self._place(self._homeless)
        if not self._pending or any(replacement.waits for replacement in self._pending):
            return placed
        tasks = [replacement.task for replacement in self._pending]
        self._pending = []
        placed += self._place(tasks)
        for policy in {self._policy(task) for task in tasks if task.kind in ("actor", "policy")}:
            for asker in plan.act_actors(self._experiment, policy):
                if asker not in tasks and self._epochs[policy]:
                    self._launcher.tell(asker, {"do": "epoch", "epoch": self._epochs[policy]})
        return placed

    def _place(self, tasks: list[Task]) -> list[Task]:
        """Start those for which there is a place; the others wait for one."""
        placed: list[Task] = []
        for task in tasks:
            if self._launcher.replace(task, life=self._lives[task], epoch=self._epochs[self._policy(task)]):
                placed.append(task)
        self._homeless = [task for task in dict.fromkeys([*self._homeless, *tasks]) if task not in placed]
        return placed

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
        limit = self._experiment.restarts.memory
        for task, look in self._launcher.look(memory=limit is not None).items():
            if task in self._causes:
                continue
            if look.age > self._experiment.stall_seconds:
                advice = "if its work takes so long, raise stall_seconds"
                self.kill(task, f"has shown no sign of life for {look.age:.0f} s; {advice}")
            elif look.age > STOPPED_SECONDS and look.stopped:
                self.kill(task, "was stopped and not let go on")
            elif limit is not None and look.memory > limit * 2**20:
                self.kill(task, f"used {look.memory / 2**20:,.0f} MiB of memory, {limit:,} are allowed")

    def forget(self) -> None:
        """Everything starts anew; only the deaths still count."""
        self._pending, self._homeless, self._absent, self._causes = [], [], set(), {}
        self._epochs.clear()
