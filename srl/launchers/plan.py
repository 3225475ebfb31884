"""The plan of a run: which workers there are, and which shared memory and channels each of them needs.

    tasks      trainer-main-0   policy-main-0   actor-main-0   actor-main-1   evaluator-eval-0
    resources  params/main   act/main   act/main/requests   act/main/replies/0
               train/main/0   train/main/0/full   train/main/credits/0   ranks/main

Trainers of one group are ranks. Each has its part of the stream: its own actors, slots and pipe of full segments.

Pure data, computed alike by whoever starts the workers and by each worker that is told only its task. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from srl.errors import UserError
from srl.experiment import Experiment, Trainers
from srl.memory import Channel, Listener, Memory
from srl.params.base import params_bytes
from srl.streams.base import Shapes
from srl.streams.shm import CREDIT, FULL, LANE, Lane, Segments, act_bytes

Kind = Literal["trainer", "policy", "actor", "evaluator"]
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


@dataclass(frozen=True, slots=True)
class Need:
    """A resource that is to be made: so many bytes of memory, a channel of such records, or a place to meet."""

    name: str
    nbytes: int = 0
    record: str = ""
    listens: bool = False

    def make(self, fds: list[int] | None = None) -> Resource:
        """The resource, new or attached to descriptors that came from elsewhere."""
        if self.record:
            return Channel(self.record, None if fds is None else (fds[0], fds[1]))
        if self.listens:
            return Listener(None if fds is None else fds[0])
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


def act_actors(experiment: Experiment, policy: str) -> list[Task]:
    """The actors that ask this policy."""
    return [
        task for task in tasks_of(experiment) if task.kind == "actor" and _actors(experiment, task).policy == policy
    ]


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


def needs_of(experiment: Experiment, shapes: dict[str, Shapes]) -> list[Need]:
    """Every resource of the run; shapes are those of each policy by name."""
    needs = [Need(BEATS, nbytes=8 * len(tasks_of(experiment)))]
    for name, policies in experiment.policies.items():
        needs.append(Need(f"params/{name}", nbytes=params_bytes(shapes[name].params)))
        if policies.act == "shm":
            actors = act_actors(experiment, name)
            needs.append(Need(f"act/{name}", nbytes=act_bytes(shapes[name], lanes_of(experiment, actors))))
            needs.append(Need(f"act/{name}/requests", record=LANE))
            needs += [Need(f"act/{name}/replies/{at}", record=LANE) for at in range(len(actors))]
    for group, trainers in experiment.trainers.items():
        stream = trainers.train
        segments = segments_of(experiment, stream, shapes[trainers.policy])
        slots = experiment.streams[stream].slots // trainers.count
        for rank in range(trainers.count):
            needs.append(Need(f"train/{stream}/{rank}", nbytes=slots * segments.layout.nbytes))
            needs.append(Need(f"train/{stream}/{rank}/full", record=FULL))
        if trainers.count > 1:
            needs.append(Need(f"ranks/{group}", listens=True))
        count = len(train_actors(experiment, stream))
        needs += [Need(f"train/{stream}/credits/{at}", record=CREDIT) for at in range(count)]
    return needs


def needed_by(task: Task, experiment: Experiment, needs: list[Need]) -> list[Need]:
    """The resources that one worker is given."""
    wanted = _wanted(task, experiment)
    return [need for need in needs if need.name == BEATS or any(_matches(need.name, want) for want in wanted)]


def _matches(name: str, want: str) -> bool:
    return name.startswith(want[:-1]) if want.endswith("*") else name == want


def _wanted(task: Task, experiment: Experiment) -> list[str]:
    if task.kind == "trainer":
        trainers = experiment.trainers[task.group]
        stream, actors = trainers.train, train_actors(experiment, trainers.train)
        own = [actors.index(actor) for actor in part_of(experiment, stream, task.index)]
        lent = [f"train/{stream}/credits/{at}" for at in own]
        part = f"train/{stream}/{task.index}"
        return [f"params/{trainers.policy}", part, f"{part}/full", f"ranks/{task.group}", *lent]
    if task.kind == "policy":
        return [f"params/{task.group}", f"act/{task.group}", f"act/{task.group}/*"]
    actors = _actors(experiment, task)
    wanted = [f"params/{actors.policy}"]
    if task.kind == "actor":
        act_at = act_actors(experiment, actors.policy).index(task)
        wanted += [f"act/{actors.policy}", f"act/{actors.policy}/requests", f"act/{actors.policy}/replies/{act_at}"]
        stream = actors.train or ""
        train_at, part = (
            train_actors(experiment, stream).index(task),
            f"train/{stream}/{rank_of(experiment, stream, task).index}",
        )
        wanted += [part, f"{part}/full", f"train/{stream}/credits/{train_at}"]
    return wanted
