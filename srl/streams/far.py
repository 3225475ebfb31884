"""The train stream and the params edge between a trainer and other hosts: one connection per host carries both.

    trainer                       network                       every other host
    Gate  --Weights, block-->                    --> Outpost --> params in that host's memory
          --Lend------------->                               --> credits of its actors (pipes)
          <--Full, block------                   <--         <-- full slots of its actors (a pipe)
          <--Note, Hello, Have

On either side everything is as on one host: actors and readers do not know that their trainer is elsewhere, nor does
the trainer, whose slots are filled by the gate. A credit waits at the outpost until the weights it asks for are there.
Only the newest weights are ever sent, when a host has those before. What a broken link swallowed is said again: a host
says Hello every few seconds, and is then told of all that its actors are lent.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from srl.memory import Channel, Memory
from srl.params.base import Board
from srl.wire import Called, Served

HELLO_SECONDS = 10.0


class Hello(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A host serves these actors, has these weights, sent these tickets, and means the same by a segment."""

    actors: list[int]
    have: int
    posted: list[int]
    digest: bytes


class Have(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A host has weights of this version, and is ready for newer ones."""

    version: int


class Full(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A segment, filled by this credit."""

    ticket: int


class Note(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A lane has kept how it stands for the checkpoint of this version."""

    lane: int
    version: int


class Lend(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A credit for an actor; and the credits whose segments have arrived or are void."""

    lane: int
    ticket: int
    oldest: int
    mark: int
    done: list[int]


class Weights(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """The newest weights."""

    version: int
    steps: int


class Refused(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """A host cannot take part."""

    why: str


TO_TRAINER = Hello | Have | Full | Note
TO_HOST = Lend | Weights | Refused


@dataclass
class _Host:
    """What the gate knows of a host."""

    ready_for: int | None = None
    """It has this version and waits for a newer one; None while one is on its way."""
    done: list[int] = field(default_factory=list[int])


class Gate:
    """A trainer's end: credits go out, segments come in, and whatever is late, foreign or said twice is left out."""

    def __init__(
        self,
        wire: Served,
        digest: bytes,
        memory: Memory,
        nbytes: int,
        granted: Mapping[int, Channel],
        full: Channel,
        board: Board | None,
    ) -> None:
        self._wire = wire
        self._digest = digest
        self._memory = memory
        self._nbytes = nbytes
        self._credits = granted
        self._full = full
        self._board = board
        self._hosts: dict[bytes, _Host] = {}
        self._served: dict[int, bytes] = {}
        self._lent: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._arrived: list[tuple[int, int]] = []
        self._newest: tuple[int, int, bytes] | None = None
        self.received = 0
        """Segments that came over the network."""

    def grants(self) -> dict[int, _Grants]:
        """What lends slots to each actor, wherever it is."""
        return {at: _Grants(self, at) for at in self._credits}

    def lend(self, actor: int, record: tuple[int, ...]) -> None:
        """Give an actor a credit."""
        host = self._served.get(actor)
        if host is None:
            self._credits[actor].put(*record)
            return
        _, lane, ticket, oldest, mark = record
        self._lent[ticket] = actor, record
        done, self._hosts[host].done = self._hosts[host].done, []
        self._wire.send(host, Lend(lane, ticket, oldest, mark, done))

    def void(self, actor: int) -> None:
        """What an actor was lent is worth nothing any more, and whoever says Hello for it next has it."""
        self._served.pop(actor, None)
        self._credits[actor].take()
        self._lent = {ticket: lent for ticket, lent in self._lent.items() if lent[0] != actor}

    def publish(self, version: int, steps: int) -> None:
        """The board has new weights; those who wait for them get them now, the others when they are ready."""
        assert self._board is not None
        self._newest = version, steps, self._board.newest()
        for name in self._hosts:
            self._offer(name)

    def _offer(self, name: bytes) -> None:
        host = self._hosts[name]
        if self._newest is None or host.ready_for is None or host.ready_for >= self._newest[0]:
            return
        version, steps, block = self._newest
        self._wire.send(name, Weights(version, steps), block)
        host.ready_for = None

    def take(self) -> list[tuple[int, int]]:
        """Records of all segments and notes that have come, from this host and from others."""
        while (message := self._wire.receive()) is not None:
            self._hear(*message)
        arrived, self._arrived = self._arrived, []
        return [*((slot, ticket) for slot, ticket in self._full.take()), *arrived]

    def _hear(self, name: bytes, header: Any, block: memoryview) -> None:
        if isinstance(header, Hello):
            self._greet(name, header)
        elif name not in self._hosts:
            self._wire.refuse("its host has not said Hello")
        elif isinstance(header, Have):
            self._hosts[name].ready_for = header.version
            self._offer(name)
        elif isinstance(header, Note):
            self._arrived.append((-1 - header.lane, header.version))
        else:
            self._fill(name, header.ticket, block)

    def _greet(self, name: bytes, hello: Hello) -> None:
        """A host comes, or says that it is still there; tell it all that its actors are lent."""
        if hello.digest != self._digest or not self._credits.keys() >= set(hello.actors):
            self._wire.refuse(why := "its segments are not those of this trainer")
            self._wire.send(name, Refused(why))
            return
        host = self._hosts.setdefault(name, _Host())
        host.ready_for = hello.have
        host.done = [ticket for ticket in hello.posted if ticket not in self._lent]
        self._offer(name)
        for actor in hello.actors:
            self._served[actor] = name
            for record in self._credits[actor].take():
                self._lent[record[2]] = actor, record
        for actor, record in list(self._lent.values()):
            if self._served.get(actor) == name:
                self.lend(actor, record)

    def _fill(self, name: bytes, ticket: int, block: memoryview) -> None:
        if len(block) != self._nbytes:
            self._wire.refuse(f"a segment has {self._nbytes:,} bytes, and it {len(block):,}")
            return
        self._hosts[name].done.append(ticket)
        lent = self._lent.pop(ticket, None)
        if lent is None:
            return
        slot = lent[1][0]
        memoryview(self._memory.buffer)[slot * self._nbytes : (slot + 1) * self._nbytes] = block
        self._arrived.append((slot, ticket))
        self.received += 1

    def waits(self) -> list[int]:
        """Readable when a segment may be here."""
        return [*self._full.waits(), *self._wire.fds()]

    def close(self) -> None:
        """Hear nobody any more."""
        self._wire.close()


class _Grants:
    """Looks like the pipe of an actor's credits."""

    def __init__(self, gate: Gate, actor: int) -> None:
        self._gate = gate
        self._actor = actor

    def put(self, *record: int) -> None:
        """Lend the actor a slot."""
        self._gate.lend(self._actor, record)

    def take(self) -> list[tuple[int, ...]]:
        """Take back what it was lent."""
        self._gate.void(self._actor)
        return []


class Outpost:
    """A trainer's end on another host, towards the actors there."""

    def __init__(
        self,
        wire: Called,
        digest: bytes,
        memory: Memory | None,
        nbytes: int,
        actors: Mapping[int, int],
        granted: Mapping[int, Channel],
        full: Channel | None,
    ) -> None:
        self._wire = wire
        self._digest = digest
        self._memory = memory
        self._nbytes = nbytes
        self._actors = actors
        """The actor of each lane."""
        self._credits = granted
        self._full = full
        self._free = list(range(memory.nbytes // nbytes)) if memory else []
        self._held: deque[Lend] = deque()
        self._lent: dict[int, tuple[int, int]] = {}
        """Slot and actor of each ticket that is being filled."""
        self._posted: dict[int, tuple[int, float]] = {}
        """Slot of each ticket that was sent, and when."""
        self.serves = sorted(granted)
        self._next_hello = 0.0

    def turn(self, have: int, write: Callable[[int, int, memoryview], None]) -> bool:
        """Pass on whatever there is, in both directions; False when there was nothing."""
        if time.monotonic() >= self._next_hello:
            self.hello(have)
        worked = False
        while (message := self._wire.receive()) is not None:
            worked = True
            have = self._hear(message[0], message[1], have, write)
        return self._grant(have) | self._send() | worked

    def hello(self, have: int) -> None:
        """Say what this host has and whom it serves."""
        self._next_hello = time.monotonic() + HELLO_SECONDS
        self._wire.send(Hello(self.serves, have, list(self._posted), self._digest))

    def _hear(self, header: Any, block: memoryview, have: int, write: Callable[[int, int, memoryview], None]) -> int:
        if isinstance(header, Refused):
            raise RuntimeError(f"the trainer refused this host: {header.why}")
        if isinstance(header, Weights):
            write(header.version, header.steps, block)
            self._wire.send(Have(header.version))
            return header.version
        for ticket in header.done:
            if ticket in self._posted:
                self._free.append(self._posted.pop(ticket)[0])
        if header.ticket in self._posted:
            self._send_again(header.ticket)
        elif header.ticket not in self._lent and all(held.ticket != header.ticket for held in self._held):
            self._held.append(header)
        return have

    def _grant(self, have: int) -> bool:
        """Give actors the credits whose weights are here."""
        granted = False
        while self._held and self._free and self._held[0].oldest <= have:
            lend, slot = self._held.popleft(), self._free.pop()
            actor = self._actors[lend.lane]
            self._lent[lend.ticket] = slot, actor
            self._credits[actor].put(slot, lend.lane, lend.ticket, lend.oldest, lend.mark)
            granted = True
        return granted

    def _send(self) -> bool:
        records = self._full.take() if self._full else []
        for number, ticket in records:
            if number < 0:
                self._wire.send(Note(-1 - number, ticket))
            elif ticket in self._lent:
                self._posted[ticket] = self._lent.pop(ticket)[0], time.monotonic()
                self._post(ticket)
        return bool(records)

    def _post(self, ticket: int) -> None:
        assert self._memory is not None
        start = self._posted[ticket][0] * self._nbytes
        self._wire.send(Full(ticket), memoryview(self._memory.buffer)[start : start + self._nbytes])

    def _send_again(self, ticket: int) -> None:
        """The trainer still waits for what was sent long ago."""
        slot, since = self._posted[ticket]
        if time.monotonic() > since + HELLO_SECONDS:
            self._posted[ticket] = slot, time.monotonic()
            self._post(ticket)

    def reclaim(self, actor: int) -> None:
        """Take back what an actor that is dead was lent."""
        self._credits[actor].take()
        self._held = deque(held for held in self._held if self._actors[held.lane] != actor)
        for ticket, (slot, who) in list(self._lent.items()):
            if who == actor:
                del self._lent[ticket]
                self._free.append(slot)

    def fds(self) -> list[int]:
        """Readable when there may be something to pass on."""
        return [*self._wire.fds(), *(self._full.waits() if self._full else ())]

    def close(self) -> None:
        """Leave."""
        self._wire.close()


def digest_of(parts: Iterable[Any]) -> bytes:
    """What both ends must agree on, in few bytes."""
    return hashlib.sha256(repr(list(parts)).encode()).digest()
