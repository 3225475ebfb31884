"""Workers on any Ray cluster: Ray finds the hosts, accounts for what they give, and says when one is gone.

    control --> RayLauncher --placement groups--> Ray: a bundle per worker, each on some host
                            --orders, events----> a Host per host, which forks the workers there

A worker's bundle holds its place; its process is forked by the host's one Ray actor, so that workers of a host start in
milliseconds, share memory, and cost Ray nothing. Blocks of actors are placed on their own: a run can begin with some
of them, and when a host goes or comes, Ray moves their bundles and the launcher follows.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.util import remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from srl.errors import UserError
from srl.experiment import Experiment
from srl.launchers import plan
from srl.launchers.base import Event, Look, WorkerFailed
from srl.launchers.host import Host, Order
from srl.launchers.plan import Site, Task
from srl.launchers.rooms import Room, bundle, missing_of, must_fit, rooms_of
from srl.memory import Address
from srl.runs import Run
from srl.streams.base import Shapes

CONNECT_SECONDS = 5.0
SAY_SECONDS = 30.0
"""How often it is said that there is no room."""
ROOM_SECONDS = 30.0
"""A cluster that others use is given so long to have room."""
TURN_SECONDS = 0.2
"""A host answers at least so often."""
SILENT_SECONDS = 5.0
"""The actors of a host that has not answered for so long are lent nothing more, until it does."""
LOST_SECONDS = 120.0
"""A host that has not answered for so long is given up."""
SETTLE_SECONDS = 0.5
"""How often Ray is asked where homeless workers may live."""


@dataclass(eq=False)
class Seat:
    """A Host as the launcher sees it."""

    node: str
    actor: Any
    site: Site = field(default_factory=Site)
    tasks: list[Task] = field(default_factory=list[Task])
    """Its workers, relays with them."""
    orders: list[Order] = field(default_factory=list[Order])
    number: int = 0
    sent: list[Order] = field(default_factory=list[Order])
    answer: Any = None
    """What it was asked last, by this number and with these orders, and has not answered yet."""
    asked: float = 0.0
    silent: bool = False
    looks: dict[Task, Look] = field(default_factory=dict[Task, Look])


class RayLauncher:
    """Starts workers on the hosts of a Ray cluster."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address
        self._seats: list[Seat] = []
        self._spare: list[Seat] = []
        self._rooms: list[Room] = []
        self._place: dict[Task, Seat] = {}
        self._homeless: set[Task] = set()
        self._coming: dict[Any, Seat] = {}
        self._new: list[Seat] = []
        self._doors: dict[str, Address] = {}
        self._hosts = 0
        self._next_settle = 0.0
        self._run: dict[str, Any] = {}
        self._keys: Any = None
        self._needs_memory = False
        self._events: list[Event] = []

    def describe(self, experiment: Experiment) -> dict[str, Shapes]:
        """The shapes of every policy, found on a host of the cluster."""
        self._connect(experiment)
        must_fit(experiment)
        seat = self._seat(ray.get_runtime_context().get_node_id())
        self._spare.append(seat)
        return _result(seat.actor.describe.remote(experiment))

    def _connect(self, experiment: Experiment) -> None:
        if ray.is_initialized():
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        address = self._address or os.environ.get("RAY_ADDRESS")
        try:
            here = {"_node_ip_address": _address_towards(address)} if address and ":" in address else {}
            ray.init(address=address or "auto", **here, **quiet)
        except ConnectionError as error:
            if address:
                raise UserError(f"no Ray cluster answers at {address}: {error.__cause__ or error}") from error
            # Nobody else is on a cluster of our own, so it may have as many workers as the run has.
            wanted = sum(bundle(experiment, task)["CPU"] for task in plan.tasks_of(experiment))
            ray.init(address="local", num_cpus=int(wanted), include_dashboard=False, **quiet)

    def start(self, experiment: Experiment, shapes: dict[str, Shapes], run: Run, *, resume: bool) -> list[Task]:
        """Find room for the workers and start those that have it; the others."""
        from srl.wire import Keys

        self._run = {"experiment": experiment, "shapes": shapes, "folder": run.path.resolve(), "resume": resume}
        self._keys, self._doors, self._needs_memory = Keys.new(), {}, experiment.restarts.memory is not None
        self._homeless = set(plan.tasks_of(experiment))
        # The first room is that of trainers. Others are asked for once it is there, because they could take its place.
        rooms = rooms_of(experiment)
        self._rooms = [next(rooms)]
        self._wait_for_room(experiment, self._rooms[0].tasks)
        self._rooms += rooms
        self._wait_for_room(experiment, plan.tasks_of(experiment))
        self._found()
        while self._coming:
            self._arrive(ROOM_SECONDS)
        for task, seat in self._place.items():
            if task.kind != "relay":
                seat.orders.append(("start", task, {"life": 0, "epoch": 0}))
        return [task for task in plan.tasks_of(experiment) if task in self._homeless]

    def _wait_for_room(self, experiment: Experiment, tasks: list[Task]) -> None:
        """At the start for a short while; later, when a host was lost, for as long as deaths of workers count."""
        patience = experiment.restarts.window if self._hosts else ROOM_SECONDS
        until, said = time.monotonic() + patience, 0.0
        while missing := self._without_room(experiment, tasks):
            free = ray.available_resources().get("CPU", 0.0)
            what = f"the cluster has no room for {len(missing)} of the workers, {missing[0].name} among them"
            if time.monotonic() > until:
                raise UserError(f"{what}: {free:g} CPUs are free. Try again later, or take fewer")
            if self._hosts and time.monotonic() > said + SAY_SECONDS:
                said = time.monotonic()
                print(f"srl: {what}; waiting for a host to come back", file=sys.stderr)
            time.sleep(TURN_SECONDS)

    def _without_room(self, experiment: Experiment, tasks: list[Task]) -> list[Task]:
        placed = {task for room in self._rooms for task in room.nodes()}
        return [task for task in missing_of(experiment, placed) if task in tasks]

    def _found(self) -> None:
        """Prepare a host wherever Ray has room now for workers that have none."""
        alive = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        by_node: dict[str, list[Task]] = {}
        for room in self._rooms:
            for task, node in room.nodes().items() if self._homeless & set(room.tasks) else ():
                if task in self._homeless and node in alive:
                    by_node.setdefault(node, []).append(task)
        where = {task.name: seat.site.host for task, seat in self._place.items()}
        seats = [(self._seat(node), tasks) for node, tasks in by_node.items()]
        for at, (_, tasks) in enumerate(seats):
            where |= {task.name: self._hosts + at for task in tasks}
        for seat, tasks in seats:
            seat.site = Site(self._hosts, where, alive[seat.node])
            self._hosts += 1
            self._homeless -= set(tasks)
            self._coming[seat.actor.prepare.remote(**self._run, site=seat.site)] = seat

    def _seat(self, node: str) -> Seat:
        """A host on this node that nobody lives on yet."""
        for seat in self._spare:
            if seat.node == node:
                self._spare.remove(seat)
                return seat
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        environment = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}
        options = ray.remote(Host).options(num_cpus=0, scheduling_strategy=strategy, runtime_env=environment)
        return Seat(node, options.remote(sys.path))

    def _arrive(self, seconds: float) -> None:
        """Hosts that are prepared take part from now on."""
        done, _ = ray.wait(list(self._coming), num_returns=1, timeout=seconds)
        for answer in done:
            seat = self._coming.pop(answer)
            experiment, site = self._run["experiment"], seat.site
            try:
                doors = _result(answer)
            except RayActorError:
                self._homeless |= {task for task in plan.tasks_of(experiment) if site.where.get(task.name) == site.host}
                continue
            self._doors |= doors
            self._new.append(seat)
        if self._new and not self._coming:
            self._welcome()

    def _welcome(self) -> None:
        """Once all that were coming are there, everyone knows the others' doors, and their workers can be started."""
        new, self._new = self._new, []
        self._seats += new
        for seat in self._seats:
            seat.actor.meet.remote(self._doors, self._keys)
        for seat in new:
            seat.tasks = plan.tasks_at(self._run["experiment"], seat.site)
            self._place |= dict.fromkeys(seat.tasks, seat)
            relays = [task for task in seat.tasks if task.kind == "relay"]
            seat.orders += [("start", task, {"life": 0, "epoch": 0}) for task in relays]
        self._tell_doors()

    def _tell_doors(self) -> None:
        """Actors that ask over the network learn where policy workers are now."""
        experiment = self._run["experiment"]
        for name in experiment.policies:
            doors = [self._doors.get(f"door/{task.name}") for task in plan.policy_workers(experiment, name)]
            for actor in plan.act_actors(experiment, name):
                seat = self._place.get(actor)
                if seat and doors and None not in doors and actor not in plan.by_memory(experiment, name, seat.site):
                    self.tell(actor, {"do": "doors", "doors": doors})

    def poll(self, seconds: float) -> list[Event]:
        """What happened on all hosts, waiting at most so long for the first."""
        self._settle()
        for seat in self._seats:
            if seat.answer is None:
                seat.number, seat.sent, seat.orders = seat.number + 1, seat.orders, []
                self._ask(seat)
        if self._seats:
            ray.wait([seat.answer for seat in self._seats], num_returns=1, timeout=seconds)
        for seat in list(self._seats):
            self._hear(seat)
        events, self._events = self._events, []
        return events

    def _ask(self, seat: Seat) -> None:
        exchange = seat.actor.exchange.remote
        seat.answer = exchange(seat.number, seat.sent, TURN_SECONDS, memory=self._needs_memory)
        seat.asked = time.monotonic()

    def _settle(self) -> None:
        if self._coming:
            self._arrive(0.0)
        elif self._homeless and time.monotonic() > self._next_settle:
            self._next_settle = time.monotonic() + SETTLE_SECONDS
            self._found()

    def _hear(self, seat: Seat) -> None:
        done, _ = ray.wait([seat.answer], timeout=0)
        waited = time.monotonic() - seat.asked
        if not done:
            if waited > LOST_SECONDS:
                self._lose(seat, f"its host {seat.site.address} did not answer for {waited:.0f} s")
            elif waited > SILENT_SECONDS and not seat.silent:
                self._say(seat, "silent")
            return
        try:
            events, seat.looks, logs = _result(seat.answer)
        except ActorDiedError:
            self._lose(seat, f"its host {seat.site.address} is gone")
            return
        except RayActorError:
            # It may still be there; asked anew, by the same number, it will say, and do nothing twice.
            self._ask(seat)
            return
        seat.answer = None
        if seat.silent:
            self._say(seat, "back")
        self._events += events
        for name, text in logs.items():
            with (Run(self._run["folder"]).logs / name).open("ab") as log:
                log.write(text)

    def _say(self, seat: Seat, kind: str) -> None:
        seat.silent = kind == "silent"
        text = "does not answer; its actors are lent nothing until it does" if seat.silent else "answers again"
        told = {"kind": "warning", "text": f"its host {seat.site.address} {text}"}
        self._events += [Event(seat.tasks[0], told), *(Event(task, {"kind": kind}) for task in seat.tasks)]

    def _lose(self, seat: Seat, how: str) -> None:
        """All who lived there are dead, and homeless until Ray has other places for them."""
        self._seats.remove(seat)
        ray.kill(seat.actor)
        for task in seat.tasks:
            del self._place[task]
            if task.kind == "relay":
                self._events.append(Event(task, {"kind": "gone"}))
            else:
                self._events.append(Event(task, {"kind": "exit", "how": f"died, because {how}"}))
        self._homeless |= {task for task in seat.tasks if task.kind != "relay"}

    def tell(self, task: Task, message: dict[str, Any]) -> None:
        """Say something to a worker; to one that is gone, nothing."""
        self._order("tell", task, message)

    def kill(self, task: Task) -> None:
        """End a worker at once."""
        self._order("kill", task, {})

    def replace(self, task: Task, *, life: int, epoch: int) -> bool:
        """Start the next life of a worker that is dead, if it has a place."""
        return self._order("start", task, {"life": life, "epoch": epoch})

    def _order(self, what: str, task: Task, message: dict[str, Any]) -> bool:
        seat = self._place.get(task)
        if seat is not None:
            seat.orders.append((what, task, message))
        return seat is not None

    def look(self, *, memory: bool) -> dict[Task, Look]:
        """How each worker is, where its host answers."""
        return {task: look for seat in self._seats if not seat.silent for task, look in seat.looks.items()}

    def relays(self, task: Task) -> list[Task]:
        """The relays on a worker's host."""
        seat = self._place.get(task)
        return [other for other in seat.tasks if other.kind == "relay"] if seat else []

    def stop(self, patience: float) -> None:
        """Close every worker and give all room back, but stay connected."""
        seats = [*self._seats, *self._new, *self._coming.values(), *self._spare]
        closing = [seat.actor.close.remote(patience) for seat in seats]
        ray.wait(closing, num_returns=max(1, len(closing)), timeout=patience + TURN_SECONDS) if closing else None
        for seat in seats:
            ray.kill(seat.actor)
        for room in self._rooms:
            remove_placement_group(room.group)
        self._seats, self._new, self._spare, self._rooms = [], [], [], []
        self._place, self._coming, self._homeless = {}, {}, set()

    def close(self, patience: float) -> None:
        """Leave the cluster as it was."""
        if ray.is_initialized():
            self.stop(patience)
            ray.shutdown()


def _result(answer: Any) -> Any:
    """What a host answers; what it raised is raised here."""
    try:
        return ray.get(answer)
    except RayTaskError as error:
        if isinstance(error.cause, UserError | WorkerFailed):
            raise error.cause from None
        raise


def _address_towards(address: str) -> str:
    """The address of this host from which that one is reached; it must be quick to say that nobody is there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS) as connection:
            own = connection.getsockname()[0]
            return host if own.startswith("127.") else own
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at {address}: {error}") from error
