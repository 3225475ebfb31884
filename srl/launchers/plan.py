"""The plan of a run: which workers there are, and which shared memory and channels each of them needs.

    tasks      trainer-main-0   policy-main-0   actor-main-0   actor-main-1   evaluator-eval-0
    resources  params/main   act/main   act/main/requests   act/main/replies/0
               train/main/0   train/main/0/full   train/main/credits/0   ranks/main   door/trainer-main-0

Trainers of one group are ranks. Each has its part of the stream: its own actors, slots and pipe of full segments.

Where a run has several hosts, each has the resources of its own workers, and a relay for each trainer that lives
elsewhere. Pure data, computed alike by whoever starts the workers and by each worker that is told only its task. No
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from srl.errors import UserError
from srl.experiment import Actors, Experiment, Policies, Trainers
from srl.memory import Channel, Listener, Memory
from srl.params.base import params_bytes
from srl.streams.base import Shapes
from srl.streams.shm import CREDIT, FULL, LANE, Lane, Segments, act_bytes, slots_far

Kind = Literal["trainer", "policy", "actor", "evaluator", "relay"]
Resource: TypeAlias = Memory | Channel | Listener
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
    shared: bool = True
    """Whether the run folder can be seen from here."""

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
        if self.record:
            return Channel(self.record, None if fds is None else (fds[0], fds[1]))
        if self.door:
            return Listener(self.door, None if fds is None else fds[0])
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
    tasks = [Task("trainer", name, rank) for name, group in experiment.trainers.items() for rank in range(group.count)]
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
    relays = [
        Task("relay", name, site.host) for name in experiment.trainers if _is_relayed(experiment, name, here, site)
    ]
    return here + relays


def _is_relayed(experiment: Experiment, group: str, here: list[Task], site: Site) -> bool:
    """Whether anyone here needs the weights of a trainer elsewhere, or feeds one of its ranks there."""
    trainers, away = experiment.trainers[group], ranks_away(experiment, group, site)
    feeds = any(actor in site for rank in away for actor in part_of(experiment, trainers.train, rank.index))
    needs = any(policy_of(experiment, task) == trainers.policy for task in here)
    return feeds or (needs and Task("trainer", group, 0) in away)


def group_of(experiment: Experiment, task: Task) -> Actors | Policies | Trainers:
    """The settings of a worker's group."""
    if task.kind in ("trainer", "relay"):
        return experiment.trainers[task.group]
    return experiment.policies[task.group] if task.kind == "policy" else experiment.actors[task.group]


def policy_of(experiment: Experiment, task: Task) -> str:
    """The policy that a worker trains, serves, passes on or acts with."""
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


def trainers_of(experiment: Experiment, stream: str) -> tuple[str, Trainers]:
    """The group of trainers that learns from a stream, and its name."""
    return next((name, group) for name, group in experiment.trainers.items() if group.train == stream)


def part_of(experiment: Experiment, stream: str, rank: int) -> list[Task]:
    """The actors that feed one rank: neighbours, and as many as each other rank has, or one more or less."""
    actors, count = train_actors(experiment, stream), trainers_of(experiment, stream)[1].count
    return actors[len(actors) * rank // count : len(actors) * (rank + 1) // count]


def rank_of(experiment: Experiment, stream: str, actor: Task) -> Task:
    """The trainer that an actor feeds."""
    name, group = trainers_of(experiment, stream)
    return next(
        Task("trainer", name, rank) for rank in range(group.count) if actor in part_of(experiment, stream, rank)
    )


def _actors(experiment: Experiment, task: Task):
    return experiment.actors[task.group]


def lanes_of(experiment: Experiment, actors: list[Task]) -> list[Lane]:
    """The lanes of a stream: every rollout of these actors, numbered through."""
    lanes: list[Lane] = []
    for at, task in enumerate(actors):
        group = _actors(experiment, task)
        lanes += [Lane(len(lanes) + ring, at, group.envs) for ring in range(group.ring)]
    return lanes


def segments_of(experiment: Experiment, stream: str, shapes: Shapes) -> Segments:
    """The segments of a train stream."""
    train = experiment.streams[stream]
    rows = lanes_of(experiment, train_actors(experiment, stream))[0].rows
    return Segments(shapes, train.rollout, rows, train.chunk)


def by_memory(experiment: Experiment, policy: str, site: Site) -> list[Task]:
    """The actors here that ask policy workers here, over shared memory; the others ask over the network."""
    if experiment.policies[policy].act != "shm" or not any(task in site for task in policy_workers(experiment, policy)):
        return []
    return [task for task in act_actors(experiment, policy) if task in site]


def lanes_by_memory(experiment: Experiment, policy: str, site: Site) -> list[Lane]:
    """The lanes of those actors, numbered as all are."""
    actors, near = act_actors(experiment, policy), by_memory(experiment, policy, site)
    return [lane for lane in lanes_of(experiment, actors) if actors[lane.actor] in near]


def _doors(experiment: Experiment, task: Task, site: Site) -> list[Need]:
    """Where a worker is heard by those of other hosts; where ranks meet."""
    asked = task.kind == "policy" and experiment.policies[task.group].act == "net"
    far = not site.alone and task.kind in ("policy", "trainer")
    names = [f"door/{task.name}"] if asked or far else []
    if task.kind == "trainer" and task.index == 0 and experiment.trainers[task.group].count > 1:
        names.append(f"ranks/{task.group}")
    return [Need(name, door=site.address) for name in names]


def needs_of(experiment: Experiment, shapes: Mapping[str, Shapes], site: Site | None = None) -> list[Need]:
    """Every resource of the workers that live at a site; shapes are those of each policy by name."""
    site = site or Site()
    tasks = tasks_at(experiment, site)
    needs = [Need(BEATS, nbytes=8 * len(tasks))]
    for name in experiment.policies:
        if any(policy_of(experiment, task) == name for task in tasks):
            needs.append(Need(f"params/{name}", nbytes=params_bytes(shapes[name].params)))
            needs += _act_needs(experiment, name, shapes[name], site)
    for task in tasks:
        if task.kind == "trainer":
            needs += _part_needs(experiment, task, shapes[policy_of(experiment, task)])
        if task.kind == "relay":
            needs += _relay_needs(experiment, task, shapes[policy_of(experiment, task)], site)
            workers = policy_workers(experiment, policy_of(experiment, task))
            needs += [Need(f"news/{worker.name}", record="<q") for worker in workers if worker in site]
        needs += _doors(experiment, task, site)
    return needs


def _act_needs(experiment: Experiment, name: str, shapes: Shapes, site: Site) -> list[Need]:
    near = by_memory(experiment, name, site)
    if not near:
        return []
    actors, lanes = act_actors(experiment, name), lanes_by_memory(experiment, name, site)
    needs = [Need(f"act/{name}", nbytes=act_bytes(shapes, lanes)), Need(f"act/{name}/requests", record=LANE)]
    return needs + [Need(f"act/{name}/replies/{actors.index(task)}", record=LANE) for task in near]


def _part_needs(experiment: Experiment, task: Task, shapes: Shapes) -> list[Need]:
    """What brings segments to a trainer: its part of the stream, with the credits of its actors wherever they are."""
    group = experiment.trainers[task.group]
    slots = experiment.streams[group.train].slots // group.count
    return _stream_needs(experiment, task, slots, part_of(experiment, group.train, task.index), shapes)


def _relay_needs(experiment: Experiment, task: Task, shapes: Shapes, site: Site) -> list[Need]:
    """The same, for the part of each rank on another host that actors here feed."""
    group, needs = experiment.trainers[task.group], list[Need]()
    for rank in ranks_away(experiment, task.group, site):
        actors = part_of(experiment, group.train, rank.index)
        here = [actor for actor in actors if actor in site]
        slots = experiment.streams[group.train].slots // group.count
        far = slots_far(len(lanes_of(experiment, here)), len(lanes_of(experiment, actors)), slots)
        needs += _stream_needs(experiment, rank, far, here, shapes) if here else []
    return needs


def ranks_away(experiment: Experiment, group: str, site: Site) -> list[Task]:
    """The trainers of a group that live on other hosts."""
    return [task for task in tasks_of(experiment) if (task.kind, task.group) == ("trainer", group) and task not in site]


def _stream_needs(experiment: Experiment, rank: Task, slots: int, actors: list[Task], shapes: Shapes) -> list[Need]:
    stream = experiment.trainers[rank.group].train
    part, everyone = f"train/{stream}/{rank.index}", train_actors(experiment, stream)
    nbytes = slots * segments_of(experiment, stream, shapes).layout.nbytes
    needs = [Need(part, nbytes=nbytes), Need(f"{part}/full", record=FULL)]
    return needs + [Need(f"train/{stream}/credits/{everyone.index(actor)}", record=CREDIT) for actor in actors]


def needed_by(task: Task, experiment: Experiment, needs: list[Need]) -> list[Need]:
    """The resources that one worker is given, of those that are at its site."""
    wanted = [BEATS, f"params/{policy_of(experiment, task)}", f"door/{task.name}", *_edges(task, experiment)]
    return [need for need in needs if any(_matches(need.name, want) for want in wanted)]


def _matches(name: str, want: str) -> bool:
    return name.startswith(want[:-1]) if want.endswith("*") else name == want


def _edges(task: Task, experiment: Experiment) -> list[str]:
    if task.kind == "relay":
        trainers = experiment.trainers[task.group]
        return [f"train/{trainers.train}/*", f"news/policy-{trainers.policy}-*"]
    if task.kind == "trainer":
        stream = experiment.trainers[task.group].train
        actors, part = train_actors(experiment, stream), f"train/{stream}/{task.index}"
        lent = [f"train/{stream}/credits/{actors.index(at)}" for at in part_of(experiment, stream, task.index)]
        return [part, f"{part}/full", f"ranks/{task.group}", *lent]
    if task.kind == "policy":
        return [f"act/{task.group}", f"act/{task.group}/*", f"news/{task.name}"]
    if task.kind == "evaluator":
        return []
    actors = _actors(experiment, task)
    act, stream = f"act/{actors.policy}", actors.train or ""
    act_at = act_actors(experiment, actors.policy).index(task)
    train_at = train_actors(experiment, stream).index(task)
    part = f"train/{stream}/{rank_of(experiment, stream, task).index}"
    lent = f"train/{stream}/credits/{train_at}"
    return [act, f"{act}/requests", f"{act}/replies/{act_at}", part, f"{part}/full", lent]
