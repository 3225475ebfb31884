"""Sockets between the hosts of one run: who may speak, where the doors are, what a message looks like.

    Keys    CURVE keys of the run; who does not have them is not heard at all
    Served  a worker's end: hears many, answers each          (ZeroMQ ROUTER)
    Called  the end of those who knock at its door            (ZeroMQ DEALER)

A door is a listening socket, made by the host that a worker lives on and handed to it as a descriptor: its address is
known before the worker lives, and stays what it was when the worker is replaced.

A message is a small typed header and at most one block of raw bytes. What is malformed or too large is refused and
counted, and so is who cannot show the keys; nothing that comes from a network is executed. What messages mean is not
known here.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import zmq
import zmq.utils.z85

from srl.memory import Address, Listener
from srl.processes import allow_all_descriptors

HEADER_BYTES = 1 << 16
"""More than any header needs; blocks have their own limit."""
SEALED = 64
"""More than encryption adds to a frame, which ZeroMQ counts as part of it."""
COPIED = 1 << 16
"""Blocks smaller than this are copied, because sharing them with the sending thread costs more."""
WORD_SECONDS = 1.0
"""What was refused is told at most so often."""
Tell = Callable[[dict[str, Any]], None]

OPTIONS = {
    zmq.SNDHWM: 0,
    zmq.RCVHWM: 0,
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 10_000,
    # A link that was cut is tried again soon, and not only when TCP thinks so.
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 15_000,
}


def url_of(address: Address) -> str:
    """How ZeroMQ says it."""
    return f"tcp://{address[0]}:{address[1]}"


@dataclass(frozen=True)
class Keys:
    """The keys of one run: a pair for those who serve, a pair for those who call."""

    served: tuple[bytes, bytes]
    called: tuple[bytes, bytes]

    @classmethod
    def new(cls) -> Keys:
        """Keys that nobody else has."""
        return cls(zmq.curve_keypair(), zmq.curve_keypair())


class _Ears:
    """What both ends share: a socket with a context of its own, and the reading of messages."""

    def __init__(self, kind: int, messages: Any, largest: int, tell: Tell | None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(kind)
        self._tell = tell
        self._refused = self._told = 0
        self._why = ""
        self._next_word = 0.0
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(messages).decode
        # Credits and replies bound what is under way, so nothing is ever to be dropped by a full queue.
        for option, value in OPTIONS.items():
            self.socket.setsockopt(option, value)
        self.socket.setsockopt(zmq.MAXMSGSIZE, max(largest, HEADER_BYTES) + SEALED)

    def read(self, frames: Sequence[Any]) -> tuple[Any, memoryview] | None:
        """The header and the block of a message, or None if it is not one of ours."""
        if not 1 <= len(frames) <= 2 or len(frames[0]) > HEADER_BYTES:
            self.refuse("it has not the parts of a message")
            return None
        try:
            header = self._decode(frames[0])
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            self.refuse(f"its header is none of ours: {error}")
            return None
        return header, memoryview(frames[1] if len(frames) == 2 else b"")

    @property
    def refused(self) -> int:
        """What was not understood, or came from who has not the keys."""
        return self._refused

    def refuse(self, why: str) -> None:
        """Count a message that is not one of ours."""
        self._refused += 1
        self._why = why

    def _say(self) -> None:
        """Tell how many were refused since."""
        refused = self.refused
        if refused != self._told and self._tell and time.monotonic() >= self._next_word:
            self._tell({"kind": "refused", "count": refused - self._told, "why": self._why or FOREIGN})
            self._told, self._next_word = refused, time.monotonic() + WORD_SECONDS

    def _take(self) -> list[zmq.Frame]:
        """The frames of a message; none when there is no message. Asks less of the socket than recv_multipart."""
        try:
            frames = [self.socket.recv(zmq.NOBLOCK, copy=False)]
        except zmq.Again:
            return []
        while frames[-1].more:
            frames.append(self.socket.recv(copy=False))
        return frames

    def _put(self, header: Any, block: Any) -> None:
        """Send the frames of a message."""
        if block is None:
            self.socket.send(self._encode(header))
        else:
            self.socket.send(self._encode(header), zmq.SNDMORE)
            self.socket.send(block, copy=len(block) < COPIED)

    def fds(self) -> list[int]:
        """Readable when there may be a message; all must be taken before it is waited for again."""
        return [int(self.socket.getsockopt(zmq.FD))]


class Served(_Ears):
    """A door with someone behind it."""

    def __init__(self, door: Listener, keys: Keys, messages: Any, largest: int, tell: Tell | None = None) -> None:
        super().__init__(zmq.ROUTER, messages, largest, tell)
        # Strangers who say nothing hold descriptors until their time is up, which must not be those of a checkpoint.
        allow_all_descriptors()
        self._guard = _Guard(self.context, self.socket, keys.called[0])
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.curve_server = True
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.served
        self.socket.setsockopt(zmq.USE_FD, os.dup(door.fds()[0]))
        self.socket.bind(url_of(door.address))

    def receive(self) -> tuple[bytes, Any, memoryview] | None:
        """A message and who sent it; None when there is none."""
        while frames := self._take():
            message = self.read([frame.buffer for frame in frames[1:]])
            if message is not None:
                return frames[0].bytes, *message
        self._say()
        return None

    @property
    def refused(self) -> int:
        """Messages, and connections whose handshake failed."""
        return self._refused + self._guard.refused

    def send(self, to: bytes, header: Any, block: Any = None) -> None:
        """Say something to one of those who have knocked; those who are gone do not hear it."""
        self.socket.send(to, zmq.SNDMORE)
        self._put(header, block)

    def close(self) -> None:
        """Hear nobody any more."""
        self.socket.close(0)
        self.context.term()  # which ends the guard


class Called(_Ears):
    """Someone who knocks at one door, or at several that are alike."""

    def __init__(
        self,
        addresses: Sequence[Address],
        keys: Keys,
        messages: Any,
        largest: int,
        name: str = "",
        tell: Tell | None = None,
    ) -> None:
        super().__init__(zmq.DEALER, messages, largest, tell)
        self.socket.curve_serverkey = keys.served[0]
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.called
        if name:
            self.socket.setsockopt(zmq.ROUTING_ID, name.encode())
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        self._addresses: set[str] = set()
        self.knock_at(addresses)

    def knock_at(self, addresses: Sequence[Address]) -> None:
        """Leave the doors that are not named any more, and go to those that are new."""
        wanted = {url_of(address) for address in addresses}
        for gone in self._addresses - wanted:
            self.socket.disconnect(gone)
        for new in wanted - self._addresses:
            self.socket.connect(new)
        self._addresses = wanted

    def receive(self) -> tuple[Any, memoryview] | None:
        """A message; None when there is none."""
        while frames := self._take():
            message = self.read([frame.buffer for frame in frames])
            if message is not None:
                return message
        self._say()
        return None

    def send(self, header: Any, block: Any = None) -> None:
        """Say something at one of the doors; what is sent to one that is not open yet waits there."""
        self._put(header, block)

    def close(self) -> None:
        """Go away."""
        self.socket.close(0)
        self.context.term()


FOREIGN = "who sent it has not the keys of this run"
EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED


class _Guard(threading.Thread):
    """Lets in who has the callers' key of the run, and counts the connections of all others."""

    def __init__(self, context: zmq.Context[Any], watched: zmq.Socket[Any], key: bytes) -> None:
        super().__init__(name="guard", daemon=True)
        self.refused = 0
        self._key = zmq.utils.z85.decode(key)
        self._asked = context.socket(zmq.REP)
        self._asked.bind("inproc://zeromq.zap.01")
        watched.monitor("inproc://events", EVENTS)
        self._events = context.socket(zmq.PAIR)
        # A full queue would stop whoever reports to it.
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.connect("inproc://events")
        self._pending: dict[int, None] = {}
        self.start()

    def run(self) -> None:
        """Until the context ends."""
        poller = zmq.Poller()
        for one in (self._asked, self._events):
            poller.register(one, zmq.POLLIN)
        try:
            while True:
                for one, _ in poller.poll():
                    self._answer() if one is self._asked else self._note()
        except zmq.ContextTerminated:
            pass
        finally:
            self._asked.close(0)
            self._events.close(0)

    def _answer(self) -> None:
        """Whether someone may come in (ZeroMQ's RFC 27)."""
        version, request, *_, mechanism, key = self._asked.recv_multipart()
        known = mechanism == b"CURVE" and key == self._key
        self._asked.send_multipart([version, request, b"200" if known else b"400", b"", b"", b""])

    def _note(self) -> None:
        """A connection that ends before it has shown its keys is a stranger's.

        Who has shown them is not said: the newest that has not, which is wrong at times and never changes the sum.
        """
        event, descriptor = struct.unpack("=Hi", self._events.recv_multipart()[0])
        if event == zmq.EVENT_ACCEPTED:
            self._pending[descriptor] = None
        elif event == zmq.EVENT_DISCONNECTED:
            self.refused += descriptor in self._pending
            self._pending.pop(descriptor, None)
        elif self._pending:
            self._pending.popitem()
