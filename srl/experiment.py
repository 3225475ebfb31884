"""An experiment: the graph of a run, as plain data.

    actors --act--> policies          groups of equal workers, by name
    actors --train--> trainers        streams of segments, by name
    trainers --params--> policies     the newest weights, by the policy's name

Everything is a frozen dataclass that can be printed, compared, changed with `dataclasses.replace` and written as YAML.
Nothing is built here: models, algorithms and environments are settings whose `build` is called where a worker lives.
This module must not import torch, and knows no transport and no process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from srl.errors import UserError, nearest
from srl.tree import SpecTree

MAIN = "main"
"""The name of a group, stream or policy that needs none because it is the only one."""


@runtime_checkable
class Model(Protocol):
    """Settings of a policy: `build` returns something that acts and evaluates."""

    def build(
        self,
        obs_spec: SpecTree,
        action_spec: SpecTree,
        mask_spec: SpecTree | None,
        *,
        device: str = "cpu",
        seed: int = 0,
    ) -> Any:
        """The policy for these spaces, with weights drawn from the seed."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """Settings of an algorithm: `build` returns a learner with `step(batch, progress) -> stats`."""

    def build(self, policy: Any, seed: int = 0) -> Any:
        """The learner that trains this policy."""
        ...


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """When and how long an actor group evaluates instead of training."""

    every: int = 50_000
    """Steps of training between two evaluations."""
    episodes: int = 20
    """Episodes per evaluation."""

    def __post_init__(self) -> None:
        _positive(self, "every", "episodes")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How much may go wrong with the environments of a rollout before the run ends."""

    limit: int = 100
    """Faults within the window that are borne: environments are built anew, their episodes do not count."""
    window: float = 60.0
    """Seconds that a fault counts."""
    step_seconds: float = 10.0
    """A step that takes longer counts as hung; only where environments have processes of their own."""
    reset_seconds: float = 60.0
    """The same for a reset, and for building an environment."""


@dataclass(frozen=True, kw_only=True)
class Actors:
    """A group of equal actors: each steps a ring of rollouts, each rollout a batch of environments."""

    env: str | Callable[..., Any]
    """A Gymnasium id, "module:Id-v0", "module:attribute", or a callable that returns an environment."""
    env_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments for the environment."""
    policy: str = MAIN
    """The name of the policy that acts."""
    train: str | None = MAIN
    """The train stream that gets the segments; None for evaluation."""
    count: int = 1
    """Number of actor processes."""
    ring: int = 1
    """Rollouts per actor; more than one overlap stepping and inference when acting is remote."""
    envs: int = 32
    """Environments per rollout."""
    explore: bool = True
    """Sample actions; otherwise take the most likely ones."""
    evaluate: Evaluate | None = None
    """Evaluate on a schedule instead of feeding a train stream."""
    least: int | None = None
    """Actors that a cluster must have room for before the run begins; None means all, the others join later."""
    threads: int = 1
    """Threads for inline inference in each actor."""
    faults: Faults = field(default_factory=Faults)
    """What happens when environments fail."""
    isolate: bool = False
    """Give each environment a process of its own, so that one that hangs or aborts costs only its own row."""

    def __post_init__(self) -> None:
        _positive(self, "count", "ring", "envs", "threads")
        if self.least is not None:
            _positive(self, "least")


@dataclass(frozen=True, kw_only=True)
class Init:
    """Weights that a policy starts from, instead of random ones."""

    checkpoint: str
    """The folder of a checkpoint."""
    part: str = ""
    """Only weights whose names begin so, such as actor.encoder; empty takes all that fit."""


@dataclass(frozen=True, kw_only=True)
class Policies:
    """A named policy and, when acting is remote, the group of equal workers that serve it."""

    model: Model
    """Settings of the model."""
    act: Literal["inline", "shm", "net"] = "inline"
    """Where actions are computed: in the actors themselves, or in policy workers, asked over shared memory where both
    are on one host and over the network otherwise; net takes the network everywhere."""
    count: int = 1
    """Number of policy workers; only they are counted, inline acting has none."""
    max_batch: int | None = None
    """Rows that one forward pass takes at most; None means 1024, or a single request where training is synchronous,
    because what is computed together would otherwise depend on timing."""
    threads: int = 1
    """Threads of each policy worker."""
    device: str = "auto"
    """Device of each policy worker: auto, cpu, cuda, cuda:1; inline acting is always on the CPU."""
    compile: bool = False
    """Compile acting: some seconds at the start of each worker that acts, then half the time for small networks."""
    init: Init | None = None
    """Weights of another run to start from."""

    def __post_init__(self) -> None:
        _positive(self, "count", "threads")
        if self.max_batch is not None:
            _positive(self, "max_batch")
        _one_of(self, "act", ("inline", "shm", "net"))


@dataclass(frozen=True, kw_only=True)
class Train:
    """A train stream: how long its segments are, how many make a batch, and how old they may be."""

    rollout: int = 128
    """Rows (time steps) of a segment."""
    batch: int = 1
    """Segments per update."""
    max_lag: int = 0
    """Oldest weights an update may learn from, in versions; 0 is synchronous and reproducible."""
    late: Literal["wait", "drop"] = "wait"
    """What happens to a segment that would arrive too old: the trainer waits for it, or it is dropped and counted."""
    chunk: int | None = None
    """Rows between two stored recurrent states; None stores the state at the segment's start only."""

    def __post_init__(self) -> None:
        _positive(self, "rollout", "batch")
        _one_of(self, "late", ("wait", "drop"))
        if self.max_lag < 0:
            raise UserError(f"Train.max_lag must be 0 or more, not {self.max_lag}")
        if self.chunk is not None and (self.chunk < 1 or self.rollout % self.chunk):
            raise UserError(f"Train.chunk must divide rollout ({self.rollout}), and {self.chunk} does not")

    @property
    def slots(self) -> int:
        """Segments that may be under way at once: the credits of the stream."""
        return (self.max_lag + 1) * self.batch


@dataclass(frozen=True, kw_only=True)
class Trainers:
    """The trainers of a policy: each learns from its part of every batch, and all hold the same weights."""

    algorithm: Algorithm
    """Settings of the algorithm."""
    policy: str = MAIN
    """The name of the policy it trains and publishes."""
    train: str = MAIN
    """The train stream it learns from."""
    count: int = 1
    """Number of trainers; actors and the segments of a batch are divided among them."""
    threads: int = 1
    """Threads for training, of each trainer."""
    device: str = "auto"
    """Device for training: auto, cpu, cuda, cuda:1; auto and cuda give each of several trainers the next GPU."""

    def __post_init__(self) -> None:
        _positive(self, "count", "threads")


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """When a worker that died is replaced, and when the run ends instead."""

    limit: int = 10
    """Deaths of one worker within the window that the run survives; 0 ends the run with the first."""
    window: float = 600.0
    """Seconds that a death counts."""
    memory: int | None = None
    """MiB that a worker may use before it is ended and replaced; None sets no limit."""

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise UserError(f"Restarts.limit must be 0 or more, not {self.limit}")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """When a run is finished; the first that holds ends it."""

    steps: int | None = None
    """Steps trained on."""
    reward: float | None = None
    """Mean reward of the last 100 episodes of training."""
    seconds: float | None = None
    """Seconds of training; a run that ends by the clock is not reproducible."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The graph of a run: groups, streams, stop condition."""

    actors: dict[str, Actors]
    """Actor groups by name."""
    policies: dict[str, Policies]
    """Policies by name."""
    trainers: dict[str, Trainers]
    """Trainers by name."""
    streams: dict[str, Train] = field(default_factory=lambda: {MAIN: Train()})
    """Train streams by name."""
    stop: Stop = field(default_factory=lambda: Stop(steps=1_000_000))
    """When the run is finished."""
    seed: int = 1
    """Everything random in the run is drawn from it."""
    name: str = "run"
    """The recipe's name; the first word of the run folder's."""
    log_every: int = 10_000
    """Steps between two rows of metrics."""
    checkpoint_every: int = 500_000
    """Steps between two checkpoints; one is always written at the end."""
    checkpoint_seconds: float = 600.0
    """Seconds after which a checkpoint is written, however few the steps were."""
    keep: int = 3
    """Newest checkpoints kept, beside the best and those that are tagged."""
    keep_every: int | None = None
    """Keep the first checkpoint after each so many steps for ever; None keeps none of them."""
    stall_seconds: float = 60.0
    """A worker that shows no sign of life for so long is ended and replaced."""
    restarts: Restarts = field(default_factory=Restarts)
    """When workers are replaced."""

    def __post_init__(self) -> None:
        for group, kind in (("actors", Actors), ("policies", Policies), ("trainers", Trainers), ("streams", Train)):
            value = getattr(self, group)
            if isinstance(value, kind):
                object.__setattr__(self, group, {MAIN: value})
            elif not isinstance(value, Mapping):
                raise UserError(f"Experiment.{group} must be {kind.__name__}(...) or a dict of them by name")
        _positive(self, "log_every", "checkpoint_every", "keep")

    def check(self) -> Experiment:
        """Raise UserError at the first loose end of the graph; return the experiment."""
        for name, actors in self.actors.items():
            self._check_actors(name, actors)
        for name, trainers in self.trainers.items():
            _known(f"trainers {name!r}: policy", trainers.policy, self.policies)
            _known(f"trainers {name!r}: train stream", trainers.train, self.streams)
            if not any(group.train == trainers.train for group in self.actors.values()):
                raise UserError(f"trainers {name!r} learn from stream {trainers.train!r}, which no actors feed")
            self._check_ranks(name, trainers)
        for name in self.policies:
            if not any(group.policy == name for group in self.actors.values()):
                raise UserError(f"policy {name!r} acts for no actors; take it out or give it some")
            if [group.policy for group in self.trainers.values()].count(name) > 1:
                raise UserError(f"policy {name!r} has several groups of trainers, but weights have one writer")
        for name in self.streams:
            if [group.train for group in self.trainers.values()].count(name) != 1:
                raise UserError(f"stream {name!r} must have exactly one group of trainers that learns from it")
        if not self.trainers:
            raise UserError("the experiment has no trainers")
        return self

    def _check_ranks(self, name: str, trainers: Trainers) -> None:
        batch, count = self.streams[trainers.train].batch, trainers.count
        if count == 1:
            return
        if batch % count:
            raise UserError(f"trainers {name!r}: {count} trainers cannot share batches of {batch} segments equally")
        actors = sum(group.count for group in self.actors.values() if group.train == trainers.train)
        if actors < count:
            raise UserError(
                f"trainers {name!r}: each of {count} trainers needs an actor of its own; there are {actors}"
            )
        if "ranks" not in inspect.signature(trainers.algorithm.build).parameters:
            algorithm = type(trainers.algorithm).__name__
            raise UserError(f"trainers {name!r}: {algorithm}.build takes no ranks, so it learns with one trainer only")

    def _check_actors(self, name: str, actors: Actors) -> None:
        _known(f"actors {name!r}: policy", actors.policy, self.policies)
        if not any(group.policy == actors.policy for group in self.trainers.values()):
            raise UserError(f"actors {name!r} act with policy {actors.policy!r}, which no trainers publish")
        if (actors.train is None) == (actors.evaluate is None):
            raise UserError(f"actors {name!r} must either feed a train stream or evaluate")
        if actors.train is None:
            return
        _known(f"actors {name!r}: train stream", actors.train, self.streams)
        sizes = {group.envs for group in self.actors.values() if group.train == actors.train}
        if len(sizes) > 1:
            raise UserError(f"all actors that feed stream {actors.train!r} need the same envs, not {sorted(sizes)}")


Named = TypeVar("Named")


def only(groups: Mapping[str, Named]) -> tuple[str, Named]:
    """The single entry of a mapping; the first where there are several."""
    return next(iter(groups.items()))


def _known(what: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        raise UserError(f"{what} {name!r} does not exist{nearest(name, known)}")


def _positive(settings: Any, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 1:
            raise UserError(f"{type(settings).__name__}.{name} must be 1 or more, not {getattr(settings, name)}")


def _one_of(settings: Any, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(settings, name)
    if value not in allowed:
        hint = nearest(str(value), allowed)
        raise UserError(f"{type(settings).__name__}.{name} must be one of {', '.join(allowed)}, not {value!r}{hint}")
