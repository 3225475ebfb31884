"""The act edge across hosts: requests and replies travel as one block each, straight between actor and policy worker.

    actor --Ask, block--> any policy worker --Answer, block--> actor

Each request has a number, and is asked again after a while: a link that broke may have swallowed it. What is answered
twice is taken once. A request also says the oldest weights it may be answered with, because those may reach the actor's
host before the policy worker's; until they are there it waits. Else a policy worker keeps nothing but where a request
came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from srl.memory import Address, Channel, Listener
from srl.streams.base import Shapes, reply_spec, request_spec
from srl.streams.shm import Lane
from srl.tree import Layout, copy_into
from srl.wire import Called, Keys, Served, Tell

AGAIN_SECONDS = 10.0
"""After so long without a reply a request is asked again."""


class Ask(msgspec.Struct, array_like=True, frozen=True):
    """The header of a request: whose it is, in which epoch, its number, and the oldest version that may answer it."""

    lane: int
    epoch: int
    number: int
    oldest: int


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """The header of a reply: what it answers, and the version that gave it."""

    lane: int
    number: int
    version: int


@dataclass
class _Asked:
    """What a lane has asked, and when."""

    layout: Layout
    answers: Layout
    block: bytearray
    tree: dict[str, Any]
    number: int = 0
    since: float = 0.0
    waits: bool = False
    reply: tuple[dict[str, Any], int] = field(default_factory=lambda: ({}, -1))


class NetActClient:
    """An actor's end of the act edge."""

    def __init__(
        self,
        shapes: Shapes,
        lanes: Sequence[Lane],
        addresses: Sequence[Address],
        keys: Keys,
        epoch: int = 0,
        tell: Tell | None = None,
    ) -> None:
        self._lanes: dict[int, _Asked] = {}
        for lane in lanes:
            layout = Layout(request_spec(shapes, lane.rows))
            block = bytearray(layout.nbytes)
            answers = Layout(reply_spec(shapes, lane.rows))
            self._lanes[lane.index] = _Asked(layout, answers, block, layout.view(block))
        largest = max(asked.answers.nbytes for asked in self._lanes.values())
        self._wire = Called(addresses, keys, Answer, largest, tell=tell)
        self._epoch = epoch
        self._oldest = 0
        self._next_look = 0.0

    def refresh(self, at_least: int = 0) -> None:
        """Whoever answers from now on must have weights of this version."""
        self._oldest = max(self._oldest, at_least)

    def send(self, lane: int, request: dict[str, Any]) -> None:
        """Copy the request into the lane's block, and send it."""
        asked = self._lanes[lane]
        copy_into(asked.tree, request)
        asked.number += 1
        asked.waits = True
        self._ask(lane)

    def _ask(self, lane: int) -> None:
        asked = self._lanes[lane]
        asked.since = time.monotonic()
        self._wire.send(Ask(lane, self._epoch, asked.number, self._oldest), asked.block)

    def poll(self) -> list[int]:
        """Lanes whose reply is here."""
        self._send_again()
        lanes: list[int] = []
        while (message := self._wire.receive()) is not None:
            answer, block = message
            asked = self._lanes.get(answer.lane)
            if asked is None or not asked.waits or answer.number != asked.number:
                continue
            if len(block) != asked.answers.nbytes:
                self._wire.refuse("it is no reply to what was asked")
                continue
            asked.waits = False
            asked.reply = asked.answers.view(block), answer.version
            lanes.append(answer.lane)
        return lanes

    def _send_again(self) -> None:
        """Ask again what has waited for too long."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + AGAIN_SECONDS / 10
        for lane, asked in self._lanes.items():
            if asked.waits and now > asked.since + AGAIN_SECONDS:
                self._ask(lane)

    def reply(self, lane: int) -> tuple[dict[str, Any], int]:
        """The reply and the version that gave it."""
        return self._lanes[lane].reply

    def ask_again(self, epoch: int) -> None:
        """Send every request that waits once more, in a new epoch."""
        self._epoch = epoch
        for lane, asked in self._lanes.items():
            if asked.waits:
                self._ask(lane)

    def knock_at(self, addresses: Sequence[Address]) -> None:
        """From now on ask the policy workers behind these doors."""
        self._wire.knock_at(addresses)

    def fds(self) -> list[int]:
        """Readable when a reply may be here."""
        return self._wire.fds()

    def close(self) -> None:
        """Ask nobody any more."""
        self._wire.close()


class NetAsked:
    """The requests that come over the network; a source of an `ActServer`."""

    def __init__(
        self,
        shapes: Shapes,
        lanes: Sequence[Lane],
        door: Listener,
        keys: Keys,
        epoch: int = 0,
        *,
        version: Callable[[], int],
        news: Channel | None = None,
        tell: Tell | None = None,
    ) -> None:
        self._requests = {lane.index: Layout(request_spec(shapes, lane.rows)) for lane in lanes}
        self._replies = {lane.index: Layout(reply_spec(shapes, lane.rows)) for lane in lanes}
        largest = max(layout.nbytes for layout in self._requests.values())
        self._wire = Served(door, keys, Ask, largest, tell)
        self._from: dict[int, tuple[bytes, int]] = {}
        self._early: dict[int, tuple[bytes, Ask, memoryview]] = {}
        self._version = version
        self._news = news
        self.epoch = epoch
        """Requests of any other epoch are nobody's."""

    def take(self, most: int) -> list[tuple[int, dict[str, Any]]]:
        """Lanes that wait and their requests, as they came from the wire."""
        if self._news:
            self._news.take()
        found: dict[int, dict[str, Any]] = {}
        waiting, self._early, here = list(self._early.values()), {}, self._version()
        while len(found) < most and (message := waiting.pop(0) if waiting else self._wire.receive()) is not None:
            sender, ask, block = message
            layout = self._requests.get(ask.lane)
            if layout is None or len(block) != layout.nbytes:
                self._wire.refuse("nobody of this run asks so")
            elif ask.oldest > here:
                self._early[ask.lane] = message
            elif ask.epoch == self.epoch:
                self._from[ask.lane] = sender, ask.number
                found[ask.lane] = layout.view(block)
        self._early |= {message[1].lane: message for message in waiting}
        return list(found.items())

    def answer(self, lane: int, reply: dict[str, Any], version: int) -> None:
        """Send the rows of a lane to whoever asked for them."""
        layout = self._replies[lane]
        block = bytearray(layout.nbytes)
        target = layout.view(block)
        for name, leaf in reply.items():
            copy_into(target[name], leaf)
        sender, number = self._from[lane]
        self._wire.send(sender, Answer(lane, number, version), block)

    def fds(self) -> list[int]:
        """Readable when a request may be here, or the weights for one."""
        return [*self._wire.fds(), *(self._news.waits() if self._news else ())]

    def close(self) -> None:
        """Hear nobody any more."""
        self._wire.close()
