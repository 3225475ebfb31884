"""The act and train edges over shared memory: data stays where it was written, only slot numbers travel.

    act     each lane has a block with its request and its reply; its number goes to whichever policy worker reads it
            first, and comes back to its actor. Workers keep nothing: any of them may answer.

        actor --[lane, epoch]--> requests (one pipe, many readers) --> policy worker --[lane, epoch]--> replies (a pipe
                                                                                              per actor)

            When an actor or a policy worker dies, an epoch ends: policy workers first say that they answer nothing of
            it any more, then what waits is asked again. So nobody writes into a block that another one reads.

    train   each slot holds one segment. A credit is a slot lent to a lane, with the oldest version it may start with.

        trainer --[slot, lane, ticket, oldest, mark]--> credits (a pipe per actor) --> actor
        actor --[slot, ticket]--> full (one pipe) --> trainer

Writing to a pipe orders memory: whoever reads the number sees what was written before it was sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from srl.memory import Channel, Memory
from srl.streams.base import Shapes, Slot, reply_spec, request_spec, segment_spec
from srl.tree import Layout, Spec, copy_into

CREDIT = "<iiqqq"
"""Record of a credit: slot, lane, ticket, oldest version, mark."""
FULL = "<iq"
"""Record of a full slot: slot, ticket. Of a note: -1 less the lane, version."""
LANE = "<ii"
"""Record of a request or a reply: lane, epoch."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One rollout as the stream sees it: its number, the actor that owns it, its rows."""

    index: int
    actor: int
    rows: int


def act_layout(shapes: Shapes, rows: int) -> Layout:
    """The block of one lane on the act edge."""
    version = {"version": Spec((1,), "int64")}
    return Layout({"request": request_spec(shapes, rows), "reply": {**reply_spec(shapes, rows), **version}})


def act_bytes(shapes: Shapes, lanes: Sequence[Lane]) -> int:
    """Shared memory that the act edge takes."""
    return sum(act_layout(shapes, lane.rows).nbytes for lane in lanes)


def _act_blocks(shapes: Shapes, lanes: Sequence[Lane], memory: Memory) -> dict[int, dict[str, Any]]:
    blocks: dict[int, dict[str, Any]] = {}
    start = 0
    for lane in lanes:
        layout = act_layout(shapes, lane.rows)
        blocks[lane.index] = layout.view(memory.buffer, start)
        start += layout.nbytes
    return blocks


class ShmActClient:
    """An actor's end of the act edge."""

    def __init__(
        self,
        shapes: Shapes,
        lanes: Sequence[Lane],
        memory: Memory,
        requests: Channel,
        replies: Channel,
        epoch: int = 0,
    ) -> None:
        self._blocks = _act_blocks(shapes, lanes, memory)
        self._requests = requests
        self._replies = replies
        self._epoch = epoch
        self._waiting: set[int] = set()

    def refresh(self, at_least: int = 0) -> None:
        """Policy workers look for newer weights before each batch; nothing to do here."""

    def send(self, lane: int, request: dict[str, Any]) -> None:
        """Write the request into the lane's block and send its number."""
        copy_into(self._blocks[lane]["request"], request)
        self._waiting.add(lane)
        self._requests.put(lane, self._epoch)

    def poll(self) -> list[int]:
        """Lanes whose reply is here."""
        lanes = [lane for lane, epoch in self._replies.take() if epoch == self._epoch]
        self._waiting.difference_update(lanes)
        return lanes

    def ask_again(self, epoch: int) -> None:
        """Send every request that waits once more, in a new epoch; it still lies in its block."""
        self._epoch = epoch
        for lane in sorted(self._waiting):
            self._requests.put(lane, epoch)

    def knock_at(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Whoever is on this host reads the same pipe."""

    def reply(self, lane: int) -> tuple[dict[str, Any], int]:
        """The reply and the version that gave it; valid until the lane's next request."""
        reply = self._blocks[lane]["reply"]
        return reply, int(reply["version"][0])

    def fds(self) -> list[int]:
        """Readable when a reply is here."""
        return [self._replies.reader]


class ShmAsked:
    """The requests that come over shared memory; a source of an `ActServer`."""

    def __init__(
        self,
        shapes: Shapes,
        lanes: Sequence[Lane],
        memory: Memory,
        requests: Channel,
        replies: Mapping[int, Channel],
        epoch: int = 0,
    ) -> None:
        self._blocks = _act_blocks(shapes, lanes, memory)
        self._actors = {lane.index: lane.actor for lane in lanes}
        self._requests = requests
        self._replies = replies
        self.epoch = epoch
        """Requests of any other epoch are nobody's."""

    def take(self, most: int) -> list[tuple[int, dict[str, Any]]]:
        """Lanes that wait and their requests, where they lie."""
        while taken := self._requests.take(most):
            found = [(lane, self._blocks[lane]["request"]) for lane, epoch in taken if epoch == self.epoch]
            if found:
                return found
        return []

    def answer(self, lane: int, reply: dict[str, Any], version: int) -> None:
        """Write the rows of a lane into its block and send its number back."""
        block = self._blocks[lane]["reply"]
        block["version"][0] = version
        for name, leaf in reply.items():
            copy_into(block[name], leaf)
        self._replies[self._actors[lane]].put(lane, self.epoch)

    def fds(self) -> list[int]:
        """Readable when a request is here."""
        return [self._requests.reader]

    def close(self) -> None:
        """Nothing to give back."""


class Segments:
    """The slots of a train stream as arrays."""

    def __init__(self, shapes: Shapes, rollout: int, rows: int, chunk: int | None) -> None:
        self.layout = Layout(segment_spec(shapes, rollout, rows, chunk))

    def at(self, memory: Memory, slot: int) -> dict[str, Any]:
        """The segment that lies in a slot."""
        return self.layout.view(memory.buffer, slot * self.layout.nbytes)


class ShmProducer:
    """An actor's end of a train stream."""

    def __init__(self, segments: Segments, memory: Memory, granted: Channel, full: Channel) -> None:
        self._segments = segments
        self._memory = memory
        self._granted = granted
        self._full = full
        self._views: dict[int, dict[str, Any]] = {}

    def take(self) -> list[Slot]:
        """Credits that have come: slots to fill."""
        return [
            Slot(slot, lane, ticket, oldest, self._view(slot), mark)
            for slot, lane, ticket, oldest, mark in self._granted.take()
        ]

    def _view(self, slot: int) -> dict[str, Any]:
        if slot not in self._views:
            self._views[slot] = self._segments.at(self._memory, slot)
        return self._views[slot]

    def post(self, slot: Slot) -> None:
        """Hand a full slot to the trainer."""
        self._full.put(slot.index, slot.ticket)

    def note(self, lane: int, version: int) -> None:
        """Say that how this lane stands is kept for the checkpoint of this version."""
        self._full.put(-1 - lane, version)

    def fds(self) -> list[int]:
        """Readable when a credit is here."""
        return [self._granted.reader]


class Grants(Protocol):
    """What lends slots to one actor: a pipe, or a gate to another host."""

    def put(self, *record: int) -> None:
        """Lend a slot."""
        ...

    def take(self) -> Any:
        """Take back what is still there."""
        ...


class Arrivals(Protocol):
    """Where full slots come from: a pipe, or a gate to other hosts."""

    def take(self) -> list[tuple[int, ...]]:
        """Records of all that have come."""
        ...

    def waits(self) -> list[int]:
        """Readable when one may be here."""
        ...


class ShmConsumer:
    """A trainer's end of a train stream: it grants credits, and takes batches that are never too old.

    At version v exactly (max_lag + 1) x batch credits are not yet learned from; one granted at version g must be by
    version g + max_lag. With `late="wait"` a batch of the oldest full segments is taken only if all that would be left,
    full or not, can still be taken in time; otherwise the trainer waits for the older ones. With `late="drop"` it never
    waits for those: what comes too old is left out. A credit goes to the lane that has fewest, then to the one served
    longest ago: fast lanes get more, and a synchronous run always the same. The lanes may be those of a part
    of the stream's actors.
    """

    def __init__(
        self,
        segments: Segments,
        memory: Memory,
        lanes: Sequence[Lane],
        grants: Sequence[Grants] | Mapping[int, Grants],
        full: Arrivals,
        *,
        batch: int,
        max_lag: int,
        late: str = "wait",
    ) -> None:
        self._lanes = {lane.index: lane for lane in lanes}
        self._grants = grants
        self._full = full
        self._batch = batch
        self._max_lag = max_lag
        self._late = late
        slots = (max_lag + 1) * batch
        self._views = [segments.at(memory, slot) for slot in range(slots)]
        self._free = list(range(slots))
        self._out: dict[int, Slot] = {}
        self._ready: dict[int, Slot] = {}
        self._held = dict.fromkeys(self._lanes, 0)
        self._served = dict.fromkeys(self._lanes, -1)
        self._ticket = 0
        self._unnoted: set[int] = set()
        self._absent: set[int] = set()
        self.dropped = 0

    def grant(self, version: int, *, mark: bool = False) -> None:
        """Lend every free slot to a lane, to be started with weights of this version or newer.

        With a mark, each lane first keeps how it stands, and notes that it has.
        """
        self._unnoted = set()
        present = [at for at, lane in self._lanes.items() if lane.actor not in self._absent]
        for slot in self._free if present else ():
            lane = min(present, key=lambda at: (self._held[at], self._served[at], at))
            marked = mark and lane not in self._unnoted
            self._held[lane] += 1
            self._served[lane] = self._ticket
            self._out[self._ticket] = Slot(slot, lane, self._ticket, version, self._views[slot])
            self._grants[self._lanes[lane].actor].put(slot, lane, self._ticket, version, version if marked else -1)
            self._ticket += 1
            if marked:
                self._unnoted.add(lane)
        self._free = [] if present else self._free

    def noted(self, version: int) -> bool:
        """Whether every lane that was asked for it has kept how it stands."""
        self._receive(version)
        return not self._unnoted

    def reclaim(self, actor: int, version: int) -> None:
        """Take back what an actor that is gone was lent, and lend it nothing more; what it had filled still counts."""
        self._receive(version)
        self._absent.add(actor)
        self._grants[actor].take()
        for ticket, slot in list(self._out.items()):
            if self._lanes[slot.lane].actor == actor:
                self._held[slot.lane] -= 1
                self._free.append(self._out.pop(ticket).index)
        self.grant(version)

    def join(self, actor: int, version: int) -> None:
        """An actor that was gone is there again."""
        self._absent.discard(actor)
        self.grant(version)

    def state(self) -> dict[str, Any]:
        """What decides who is lent the next slots."""
        return {"ticket": self._ticket, "served": list(self._served.values())}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with a state; nothing may be lent yet."""
        if len(state["served"]) == len(self._served):
            self._ticket, self._served = state["ticket"], dict(zip(self._lanes, state["served"], strict=True))

    def take(self, version: int) -> list[Slot] | None:
        """A batch for the update of this version, oldest ticket first; None while segments are missing."""
        self._receive(version)
        if len(self._ready) < self._batch:
            return None
        chosen = sorted(self._ready)[: self._batch]
        if self._late == "wait" and not self._leaves_in_time(chosen, version):
            return None
        return [self._ready.pop(ticket) for ticket in chosen]

    def _leaves_in_time(self, chosen: Sequence[int], version: int) -> bool:
        """Whether all that is not chosen can be learned from before it is too old, the oldest first."""
        left = sorted((self._out | self._ready).keys() - set(chosen))
        slots = [self._out.get(ticket) or self._ready[ticket] for ticket in left]
        return all(version + 1 + at // self._batch <= slot.oldest + self._max_lag for at, slot in enumerate(slots))

    def _receive(self, version: int) -> None:
        for number, ticket in self._full.take():
            if number < 0:
                self._unnoted.discard(-1 - number)
                continue
            slot = self._out.pop(ticket)
            self._held[slot.lane] -= 1
            self._ready[ticket] = slot
        if self._late == "drop":
            self._drop(version)

    def _drop(self, version: int) -> None:
        for ticket, slot in list(self._ready.items()):
            if version - int(slot.segment["version"].min()) > self._max_lag:
                self.dropped += 1
                self._free.append(self._ready.pop(ticket).index)
        if self._free:
            self.grant(version)

    def release(self, slots: Sequence[Slot]) -> None:
        """Give the slots of a batch back; their credits are granted with the next version."""
        self._free += [slot.index for slot in slots]

    @property
    def waiting(self) -> int:
        """Full segments that wait for the trainer: the queue's length."""
        return len(self._ready)

    def fds(self) -> list[int]:
        """Readable when a full segment is here."""
        return self._full.waits()


def slots_far(lanes_here: int, lanes: int, slots: int) -> int:
    """Slots that the actors of one host can be lent at once: credits go to whoever has fewest."""
    return lanes_here * -(-slots // max(1, lanes))
