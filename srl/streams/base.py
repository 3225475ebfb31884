"""What the act and train edges promise, whatever carries them.

    act     client.send(lane, request) ... client.poll() -> lanes ... client.reply(lane)
            server.take() -> batch ... server.answer(batch, reply, version)
    train   producer.take(lane) -> Slot ... producer.post(slot)
            consumer.take(version) -> slots ... consumer.grant(version)

A lane is one rollout, numbered over the whole stream; it has at most one request and fills one segment at a time.
Nothing here waits: an edge says what there is now, and `fds()` names what the kernel should wake its owner for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from srl.streams.frames import before_spec
from srl.tree import Spec, SpecTree, Tree, batched, seen, spec_from_plain, spec_to_plain


@dataclass(frozen=True, slots=True)
class Shapes:
    """What passes between an environment and a policy: the specs of one row."""

    obs: SpecTree
    action: SpecTree
    mask: SpecTree | None
    state: dict[str, Any]
    extras: dict[str, Any]
    noise: int
    params: dict[str, Any]
    frames_per_step: int = 1
    scored: bool = False
    """Whether episodes are counted by other rewards and ends than those that are learned from."""

    @property
    def seen(self) -> SpecTree:
        """One row of observations as the policy sees it."""
        return seen(self.obs)

    def to_plain(self) -> dict[str, Any]:
        """Plain data, as it travels between processes."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: spec_to_plain(value) if name in SPECS else value for name, value in values.items()}

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Shapes:
        """The shapes that plain data describes."""
        return cls(**{name: spec_from_plain(value) if name in SPECS else value for name, value in data.items()})


SPECS = ("obs", "action", "mask", "state", "extras", "params")
"""What of Shapes is made of specs."""


@dataclass(slots=True)
class Slot:
    """A place for one segment, held by whoever has its credit."""

    index: int
    lane: int
    ticket: int
    oldest: int
    """The oldest version its first row may be acted with."""
    segment: dict[str, Any]
    mark: int = -1
    """The version whose checkpoint wants to know how the lane stands before this segment; -1 for none."""


class ActClient(Protocol):
    """An actor's end of the act edge."""

    def refresh(self, at_least: int = 0) -> None:
        """Take newer weights, if this end is the one that holds them."""
        ...

    def send(self, lane: int, request: dict[str, Any]) -> None:
        """Ask for the actions of one rollout's rows."""
        ...

    def poll(self) -> list[int]:
        """Lanes whose reply is here."""
        ...

    def reply(self, lane: int) -> tuple[dict[str, Any], int]:
        """The reply and the version that gave it; valid until the lane's next request."""
        ...

    def ask_again(self, epoch: int) -> None:
        """Send every request that waits once more, in a new epoch: whoever had them may be dead."""
        ...

    def knock_at(self, addresses: Sequence[tuple[str, int]]) -> None:
        """From now on ask the policy workers behind these doors."""
        ...

    def fds(self) -> list[int]:
        """Descriptors that become readable when a reply may be here."""
        ...


class Producer(Protocol):
    """An actor's end of a train stream."""

    def take(self) -> list[Slot]:
        """Credits that have come: slots to fill."""
        ...

    def post(self, slot: Slot) -> None:
        """Hand a full slot to the trainer."""
        ...

    def note(self, lane: int, version: int) -> None:
        """Say that how this lane stands is kept for the checkpoint of this version."""
        ...

    def fds(self) -> list[int]:
        """Descriptors that become readable when a credit may be here."""
        ...


class Consumer(Protocol):
    """A trainer's end of a train stream."""

    dropped: int

    def take(self, version: int) -> list[Slot] | None:
        """A batch for the update of this version."""
        ...

    def release(self, slots: Sequence[Slot]) -> None:
        """Give the slots of a batch back."""
        ...

    def grant(self, version: int, *, mark: bool = False) -> None:
        """Lend every free slot to a lane; with a mark, lanes first keep how they stand."""
        ...

    def noted(self, version: int) -> bool:
        """Whether all lanes have, that were to."""
        ...

    def reclaim(self, actor: int, version: int) -> None:
        """Take back what an actor that is gone was lent, and lend it nothing more."""
        ...

    def join(self, actor: int, version: int) -> None:
        """Lend to an actor that is there again."""
        ...

    def state(self) -> dict[str, Any]:
        """What decides who is lent the next slots."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with a state; nothing may be lent yet."""
        ...

    def fds(self) -> list[int]:
        """Readable when a full segment is here."""
        ...


def request_spec(shapes: Shapes, rows: int, explore: bool = True) -> dict[str, Any]:
    """What an act request of so many rows holds."""
    spec: dict[str, Any] = {"obs": shapes.seen, "first": Spec((), "bool"), "state": shapes.state}
    if shapes.mask is not None:
        spec["mask"] = shapes.mask
    if explore:
        spec["noise"] = Spec((shapes.noise,), "float32")
    return batched(spec, rows)


def reply_spec(shapes: Shapes, rows: int) -> dict[str, Any]:
    """What an act reply of so many rows holds."""
    return batched({"action": shapes.action, "state": shapes.state, **shapes.extras}, rows)


def segment_spec(shapes: Shapes, rollout: int, rows: int, chunk: int | None) -> dict[str, Any]:
    """What a segment holds: see docs/architecture.md for the meaning of each row."""
    flag, real = Spec((), "bool"), Spec((), "float32")
    after = {"obs": shapes.obs, "first": flag} | ({} if shapes.mask is None else {"mask": shapes.mask})
    steps = {
        "action": shapes.action,
        **shapes.extras,
        "reward": real,
        "terminated": flag,
        "truncated": flag,
        "valid": flag,
        "episode_return": real,
        "episode_length": Spec((), "int32"),
    }
    if shapes.scored:
        steps |= {"score": real, "game_over": flag}
    spec = {**batched(after, rollout + 1, rows), **batched(steps, rollout, rows), "version": Spec((rollout,), "int64")}
    if shapes.state:
        spec["state"] = batched(shapes.state, rollout // (chunk or rollout) + 1, rows)
    before = before_spec(shapes.obs)
    if before:
        spec["before"] = batched(before, rows)
    return spec


BATCH_FIELDS_LEFT_OUT = ("version", "episode_return", "episode_length", "score", "game_over", "before")
"""Fields of a segment that are for accounting or for stacking frames, not for learning."""


def columns(segment: dict[str, Any]) -> dict[str, Tree]:
    """The part of a segment that a learner sees, every leaf [rows of time, environments, ...]."""
    return {name: leaf for name, leaf in segment.items() if name not in BATCH_FIELDS_LEFT_OUT}


def counted(rows: dict[str, Any]) -> tuple[Any, Any]:
    """The rewards and the ends by which episodes are counted: the true ones, where there are others to learn from."""
    if "score" in rows:
        return rows["score"], rows["game_over"]
    return rows["reward"], rows["terminated"] | rows["truncated"]
