"""The plan of a run: which workers there are, and which shared memory and channels each of them needs.

    tasks      trainer-main-0   policy-main-0   actor-main-0   actor-main-1   evaluator-eval-0
    resources  params/main   act/main   act/main/requests   act/main/replies/0
               train/main   train/main/full   train/main/credits/0   door/trainer-main-0

Where a run has several hosts, each has the resources of its own workers, and a relay for each trainer that lives
elsewhere. Pure data, computed alike by whoever starts the workers and by each worker that is told only its task. No
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from srl.errors import UserError
from srl.experiment import Experiment
from srl.memory import Channel, Memory
from srl.params.base import params_bytes
from srl.streams.base import Shapes
from srl.streams.shm import CREDIT, FULL, LANE, Lane, Segments, act_bytes, slots_far

if TYPE_CHECKING:
    from srl.wire import Door

Kind = Literal["trainer", "policy", "actor", "evaluator", "relay"]
Resource: TypeAlias = "Memory | Channel | Door"
BEATS = "beats"


@dataclass(frozen=True, slots=True)
class Task:
    """One worker to be: its kind, its group, and which of the equal workers of the group it is."""

    kind: Kind
    group: str
    index: int

    @property
    def name(self) -> str:
        """How people see it."""
        return f"{self.kind}-{self.group}-{self.index}"


@dataclass(frozen=True)
class Site:
    """The part of a run that lives on one host, as this host sees it."""

    host: int = 0
    where: Mapping[str, int] = field(default_factory=dict[str, int])
    """The host of each worker by its name; empty where all are here, and without those that have no host yet."""
    address: str = "127.0.0.1"
    """The address of this host, at which it is heard by the others."""

    def __contains__(self, task: Task) -> bool:
        return not self.where or self.where.get(task.name) == self.host

    @property
    def alone(self) -> bool:
        """Whether there is no other host."""
        return not self.where


@dataclass(frozen=True, slots=True)
class Need:
    """A resource that is to be made: so many bytes of memory, a channel of such records, or a door at an address."""

    name: str
    nbytes: int = 0
    record: str = ""
    door: str = ""

    @property
    def descriptors(self) -> int:
        """File descriptors that it has."""
        return 2 if self.record else 1

    def make(self, fds: list[int] | None = None) -> Resource:
        """The resource, new or attached to descriptors that came from elsewhere."""
        if self.door:
            from srl.wire import Door

            return Door(self.door, fds)
        if self.record:
            return Channel(self.record, None if fds is None else (fds[0], fds[1]))
        return Memory(self.nbytes, None if fds is None else fds[0])


def make_all(needs: list[Need]) -> dict[str, Resource]:
    """Every resource, or a UserError and none of them."""
    made: dict[str, Resource] = {}
    try:
        for need in needs:
            made[need.name] = need.make()
    except (MemoryError, OSError) as error:
        for resource in made.values():
            resource.close()
        wanted = sum(need.nbytes for need in needs) / 2**20
        advice = "srl show says what takes it; fewer envs, a shorter rollout or a smaller max_lag take less"
        raise UserError(
            f"the run needs {wanted:,.0f} MiB of shared memory and cannot have it: {error}; {advice}"
        ) from error
    return made


def tasks_of(experiment: Experiment) -> list[Task]:
    """Every worker of the experiment, in the order they are started."""
    tasks = [Task("trainer", name, 0) for name in experiment.trainers]
    for name, policies in experiment.policies.items():
        if policies.act != "inline":
            tasks += [Task("policy", name, index) for index in range(policies.count)]
    for name, actors in experiment.actors.items():
        kind: Kind = "evaluator" if actors.evaluate else "actor"
        tasks += [Task(kind, name, index) for index in range(actors.count)]
    return tasks


def tasks_at(experiment: Experiment, site: Site) -> list[Task]:
    """The workers that live here, relays last."""
    here = [task for task in tasks_of(experiment) if task in site]
    away = [name for name, group in experiment.trainers.items() if Task("trainer", name, 0) not in site]
    needed = {_policy_of(experiment, task) for task in here}
    return here + [Task("relay", name, site.host) for name in away if experiment.trainers[name].policy in needed]


def _policy_of(experiment: Experiment, task: Task) -> str:
    if task.kind in ("trainer", "relay"):
        return experiment.trainers[task.group].policy
    return task.group if task.kind == "policy" else experiment.actors[task.group].policy


def act_actors(experiment: Experiment, policy: str) -> list[Task]:
    """The actors that ask this policy."""
    return [
        task for task in tasks_of(experiment) if task.kind == "actor" and _actors(experiment, task).policy == policy
    ]


def policy_workers(experiment: Experiment, policy: str) -> list[Task]:
    """The workers that serve this policy."""
    return [task for task in tasks_of(experiment) if task.kind == "policy" and task.group == policy]


def train_actors(experiment: Experiment, stream: str) -> list[Task]:
    """The actors that feed this train stream."""
    return [task for task in tasks_of(experiment) if task.kind == "actor" and _actors(experiment, task).train == stream]


def _actors(experiment: Experiment, task: Task):
    return experiment.actors[task.group]


def lanes_of(experiment: Experiment, actors: list[Task], site: Site | None = None) -> list[Lane]:
    """The lanes of a stream: every rollout of these actors, numbered through; with a site, those that are there."""
    lanes: list[Lane] = []
    for at, task in enumerate(actors):
        group = _actors(experiment, task)
        lanes += [Lane(len(lanes) + ring, at, group.envs) for ring in range(group.ring)]
    return [lane for lane in lanes if site is None or actors[lane.actor] in site]


def segments_of(experiment: Experiment, stream: str, shapes: Shapes) -> Segments:
    """The segments of a train stream."""
    train = experiment.streams[stream]
    rows = lanes_of(experiment, train_actors(experiment, stream))[0].rows
    return Segments(shapes, train.rollout, rows, train.chunk)


def by_memory(experiment: Experiment, policy: str, site: Site) -> list[Task]:
    """The actors here that ask policy workers here, over shared memory; the others ask over the network."""
    if experiment.policies[policy].act != "shm" or not any(
        task in site for task in policy_workers(experiment, policy)
    ):
        return []
    return [task for task in act_actors(experiment, policy) if task in site]


def door_of(experiment: Experiment, task: Task, site: Site) -> Need | None:
    """The door of a worker that others knock at."""
    asked = task.kind == "policy" and experiment.policies[task.group].act == "net"
    far = not site.alone and task.kind in ("policy", "trainer")
    return Need(f"door/{task.name}", door=site.address) if asked or far else None


def needs_of(experiment: Experiment, shapes: Mapping[str, Shapes], site: Site | None = None) -> list[Need]:
    """Every resource of the workers that live at a site; shapes are those of each policy by name."""
    site = site or Site()
    tasks = tasks_at(experiment, site)
    needs = [Need(BEATS, nbytes=8 * len(tasks))]
    for name in experiment.policies:
        if any(_policy_of(experiment, task) == name for task in tasks):
            needs.append(Need(f"params/{name}", nbytes=params_bytes(shapes[name].params)))
            needs += _act_needs(experiment, name, shapes[name], site)
    for task in tasks:
        if task.kind in ("trainer", "relay"):
            needs += _train_needs(experiment, task, shapes[_policy_of(experiment, task)], site)
        needs += [need for need in [door_of(experiment, task, site)] if need]
    return needs


def _act_needs(experiment: Experiment, name: str, shapes: Shapes, site: Site) -> list[Need]:
    near = by_memory(experiment, name, site)
    if not near:
        return []
    actors = act_actors(experiment, name)
    lanes = [lane for lane in lanes_of(experiment, actors, site) if actors[lane.actor] in near]
    needs = [Need(f"act/{name}", nbytes=act_bytes(shapes, lanes)), Need(f"act/{name}/requests", record=LANE)]
    return needs + [Need(f"act/{name}/replies/{actors.index(task)}", record=LANE) for task in near]


def _train_needs(experiment: Experiment, task: Task, shapes: Shapes, site: Site) -> list[Need]:
    """What carries segments to a trainer that lives here, or to the relay of one that does not."""
    stream = experiment.trainers[task.group].train
    actors, slots = train_actors(experiment, stream), experiment.streams[stream].slots
    if task.kind == "relay":
        here = lanes_of(experiment, actors, site)
        slots = slots_far(len(here), len(lanes_of(experiment, actors)), slots)
        if not here:
            return []
    nbytes = slots * segments_of(experiment, stream, shapes).layout.nbytes
    needs = [Need(f"train/{stream}", nbytes=nbytes), Need(f"train/{stream}/full", record=FULL)]
    return needs + [
        Need(f"train/{stream}/credits/{at}", record=CREDIT)
        for at, actor in enumerate(actors)
        if task.kind == "trainer" or actor in site
    ]


def needed_by(task: Task, experiment: Experiment, needs: list[Need]) -> list[Need]:
    """The resources that one worker is given, of those that are at its site."""
    wanted = [BEATS, f"params/{_policy_of(experiment, task)}", f"door/{task.name}", *_edges(task, experiment)]
    return [need for need in needs if any(_matches(need.name, want) for want in wanted)]


def _matches(name: str, want: str) -> bool:
    return name.startswith(want[:-1]) if want.endswith("*") else name == want


def _edges(task: Task, experiment: Experiment) -> list[str]:
    if task.kind in ("trainer", "relay"):
        stream = f"train/{experiment.trainers[task.group].train}"
        return [stream, f"{stream}/*"]
    if task.kind == "policy":
        return [f"act/{task.group}", f"act/{task.group}/*"]
    if task.kind == "evaluator":
        return []
    actors = _actors(experiment, task)
    act, train = f"act/{actors.policy}", f"train/{actors.train}"
    act_at = act_actors(experiment, actors.policy).index(task)
    train_at = train_actors(experiment, actors.train or "").index(task)
    return [
        *(act, f"{act}/requests", f"{act}/replies/{act_at}"),
        *(train, f"{train}/full", f"{train}/credits/{train_at}"),
    ]
