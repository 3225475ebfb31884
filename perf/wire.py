"""What the network edges cost: each beside bare ZeroMQ over the same link between two hosts, in turns, in one run.

    train   segments of 1 MiB: an outpost sends what a producer posts, a gate takes it    against PUSH and PULL
    act     request to reply: a client, and a server that takes and answers               against DEALER and ROUTER

The hosts are two network namespaces; both sides of every comparison move the same bytes, encrypted by CURVE, and again
without it for the record, which SRL itself never does. Bare PUSH sends without a copy, and nobody looks at what bare
PULL receives. A bare TCP stream shows what the link can do.

Run as root, as `python perf/wire.py [--json] [--rounds N] [--seconds S]`. Figures are medians of rounds, a ratio is the
median of the ratios within each round. Every process that is started here ends with this one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from streams import OBSERVATIONS, PATIENCE_SECONDS, ROWS, Still, Wait, asking, beside, kept, segments_of, shapes_of  # noqa: E402

from srl import wire  # noqa: E402
from srl.memory import Channel, Listener, Memory  # noqa: E402
from srl.params.base import Board, params_bytes  # noqa: E402
from srl.streams import far, net  # noqa: E402
from srl.streams.asked import ActServer  # noqa: E402
from srl.streams.base import Shapes, reply_spec, request_spec  # noqa: E402
from srl.streams.shm import CREDIT, FULL, Lane, Segments, ShmConsumer, ShmProducer  # noqa: E402
from srl.tree import Layout, Spec  # noqa: E402
from srl.wire import Keys, url_of  # noqa: E402
from srl.workers.base import BEAT_SECONDS  # noqa: E402
from tests.hosts import Hosts  # noqa: E402

CLONE_NEWNET = 0x40000000
MIB = 2**20
BATCH, MAX_LAG = 4, 1
UNDER_WAY = (MAX_LAG + 1) * BATCH
"""Messages that may be on their way at once, on both sides of the comparison."""
LANES = [Lane(0, 0, ROWS)]
PARAMS = {"w": Spec((1000,), "float32")}
DIGEST = b"wire"
Timed = Callable[[float], float]
"""Does something for so many seconds, and gives how long it took once."""
Begun = Callable[[], Timed]
"""The other end is there already; makes this one. Nobody may fork any more by then, because sockets have threads."""


@dataclass(frozen=True)
class Row:
    """A comparison: seconds of each for one message, and ratios of what people ask: speeds on train, times on act."""

    name: str
    edge: str
    curve: bool
    nbytes: int
    seconds: float
    base_seconds: float
    ratio: float
    lowest: float
    highest: float


@contextmanager
def on(hosts: Hosts, host: int) -> Iterator[None]:
    """This thread, and what it starts meanwhile, is on a host."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open() as home, Path(f"/run/netns/{hosts.name(host)}").open() as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


class Link:
    """Two hosts, the keys of a run, and whether they are used."""

    def __init__(self, stack: ExitStack, hosts: Hosts, *, curve: bool) -> None:
        self.stack, self.hosts, self.curve = stack, hosts, curve
        self.keys = Keys.new()

    def door(self, host: int) -> Listener:
        """Where someone listens on a host."""
        with on(self.hosts, host):
            return kept(self.stack, Listener(self.hosts.address(host)))

    def beside(self, work: Callable[[], object]) -> None:
        """Do this in a process on host 1."""

        def there() -> None:
            with on(self.hosts, 1):
                work()

        beside(self.stack, there)

    def served(self, door: Listener, messages: Any, largest: int) -> wire.Served:
        """The end of someone who listens."""
        return (wire.Served if self.curve else OpenServed)(door, self.keys, messages, largest)

    def called(self, door: Listener, messages: Any, largest: int, name: str = "") -> wire.Called:
        """The end of someone who knocks."""
        return (wire.Called if self.curve else OpenCalled)([door.address], self.keys, messages, largest, name)

    def bare(self, kind: int, door: Listener, *, listens: bool) -> zmq.Socket[bytes]:
        """A socket of ZeroMQ with nothing around it."""
        one = zmq.Context().socket(kind)
        for option, value in {**wire.OPTIONS, zmq.SNDHWM: UNDER_WAY, zmq.RCVHWM: UNDER_WAY}.items():
            one.setsockopt(option, value)
        if self.curve:
            one.curve_publickey, one.curve_secretkey = self.keys.served if listens else self.keys.called
            if listens:
                one.curve_server = True
            else:
                one.curve_serverkey = self.keys.served[0]
        if listens:
            one.setsockopt(zmq.USE_FD, os.dup(door.fds()[0]))
            one.bind(url_of(door.address))
        else:
            one.connect(url_of(door.address))
        self.stack.callback(one.close, 0)
        return one


class OpenServed(wire.Served):
    """Lets everyone in; only to measure what CURVE costs."""

    def __init__(self, door: Listener, keys: Keys, messages: Any, largest: int) -> None:
        super().__init__(door, keys, messages, largest)
        self.socket.unbind(url_of(door.address))
        in_the_clear(self.socket)
        self.socket.setsockopt(zmq.USE_FD, os.dup(door.fds()[0]))
        self.socket.bind(url_of(door.address))


class OpenCalled(wire.Called):
    """Knocks without a key."""

    def __init__(self, addresses: Any, keys: Keys, messages: Any, largest: int, name: str = "") -> None:
        super().__init__([], keys, messages, largest, name)
        in_the_clear(self.socket)
        self.knock_at(addresses)


def in_the_clear(one: zmq.Socket[bytes]) -> None:
    """No mechanism is left where the last one that was set is not wanted."""
    one.setsockopt(zmq.PLAIN_SERVER, 0)


def forever(turn: Callable[[], bool], fds: list[int]) -> None:
    """A worker's loop without the worker."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    while True:
        if not turn():
            poll.poll(BEAT_SECONDS * 1000)


def per_message(take: Callable[[], int]) -> Timed:
    """Seconds per message of what takes some of them each time; what had been on its way before does not count."""

    def timed(seconds: float) -> float:
        early = 0
        while early < 2 * UNDER_WAY:
            early += take()
        start, taken = time.perf_counter(), 0
        while (now := time.perf_counter()) < start + seconds or not taken:
            taken += take()
        return (now - start) / taken

    return timed


def per_call(work: Callable[[int], None]) -> Timed:
    """Seconds of one request and its reply."""

    def timed(seconds: float) -> float:
        work(1)
        start, times = time.perf_counter(), 0
        while (now := time.perf_counter()) < start + seconds or not times:
            work(1)
            times += 1
        return (now - start) / times

    return timed


# The train edge


def through_gate(link: Link, segments: Segments) -> Begun:
    """Take segments that come from the other host, learn nothing, publish small weights, lend again."""
    door = link.door(0)
    link.beside(lambda: posting(link, door, segments))
    return lambda: taking(link, door, segments)


def taking(link: Link, door: Listener, segments: Segments) -> Timed:
    """A trainer that does nothing else."""
    nbytes = segments.layout.nbytes
    memory, board = Memory(UNDER_WAY * nbytes), Board(PARAMS, Memory(params_bytes(PARAMS)))
    wire = link.served(door, far.TO_TRAINER, nbytes)
    link.stack.callback(wire.close)
    gate = far.Gate(wire, DIGEST, memory, nbytes, {0: Channel(CREDIT)}, Channel(FULL), board)
    consumer = ShmConsumer(segments, memory, LANES, gate.grants(), gate, batch=BATCH, max_lag=MAX_LAG)
    wait, version = Wait(consumer.fds()), 0

    def publish() -> None:
        board.publish(version, 0, lambda at: board.blocks[at]["w"].fill(version))
        gate.publish(version, 0)
        consumer.grant(version)

    def take() -> int:
        nonlocal version
        while (slots := consumer.take(version)) is None:
            wait()
        consumer.release(slots)
        version += 1
        publish()
        return len(slots)

    publish()
    return per_message(take)


def posting(link: Link, door: Listener, segments: Segments) -> None:
    """An actor and its relay in one: every slot that is lent comes back full."""
    nbytes = segments.layout.nbytes
    memory, granted, full = Memory(UNDER_WAY * nbytes), Channel(CREDIT), Channel(FULL)
    board = Board(PARAMS, Memory(params_bytes(PARAMS)))
    outpost = far.Outpost(
        link.called(door, far.TO_HOST, 10_000, "b"), DIGEST, memory, nbytes, {0: 0}, {0: granted}, full
    )
    producer = ShmProducer(segments, memory, granted, full)

    def turn() -> bool:
        worked = outpost.turn(board.version, board.write)
        for slot in producer.take():
            slot.segment["version"][:] = slot.oldest
            producer.post(slot)
            worked = True
        return worked

    forever(turn, [*outpost.fds(), *producer.fds()])


def through_pull(link: Link, nbytes: int) -> Begun:
    """Take messages of so many bytes from the other host."""
    door = link.door(0)

    def push() -> None:
        blocks = [np.full(nbytes, at, np.uint8) for at in range(UNDER_WAY)]
        one = link.bare(zmq.PUSH, door, listens=False)
        while True:
            for block in blocks:
                one.send(block, copy=False)

    def here() -> Timed:
        pull = link.bare(zmq.PULL, door, listens=True)

        def take() -> int:
            for _ in range(BATCH):
                pull.recv(copy=False)
            return BATCH

        return per_message(take)

    link.beside(push)
    return here


def through_tcp(link: Link, nbytes: int) -> Begun:
    """Read a stream of bytes from the other host."""
    door = link.door(0)

    def push() -> None:
        block = np.full(nbytes, 1, np.uint8)
        with socket.create_connection(door.address) as one, contextlib.suppress(OSError):
            while True:
                one.sendall(block)

    def here() -> Timed:
        with socket.socket(fileno=os.dup(door.fds()[0])) as listener:
            stream = link.stack.enter_context(listener.accept()[0])
        room = memoryview(bytearray(nbytes))

        def take() -> int:
            for _ in range(BATCH):
                left = nbytes
                while left:
                    left -= stream.recv_into(room, left)
            return BATCH

        return per_message(take)

    link.beside(push)
    return here


# The act edge


def through_client(link: Link, shapes: Shapes) -> Begun:
    """A request of an actor to the other host, and its reply."""
    door = link.door(1)
    link.beside(lambda: answering(link, door, shapes))
    return lambda: per_call(asking(client_of(link, door, shapes), shapes))


def client_of(link: Link, door: Listener, shapes: Shapes) -> net.NetActClient:
    """An actor's end."""
    client = net.NetActClient(shapes, LANES, [door.address], link.keys)
    if not link.curve:
        client.close()
        client._wire = link.called(door, net.Answer, MIB)
    link.stack.callback(client.close)
    return client


def answering(link: Link, door: Listener, shapes: Shapes) -> None:
    """A policy worker without a policy."""
    policy = Still(shapes)
    source = net.NetAsked(shapes, LANES, door, link.keys, version=lambda: 0)
    if not link.curve:
        source.close()
        source._wire = link.served(door, net.Ask, MIB)
    server = ActServer([source], LANES, ROWS)

    def turn() -> bool:
        batch = server.take()
        if batch is not None:
            server.answer(batch[0], policy.act(batch[1]), 0)
        return batch is not None

    forever(turn, server.fds())


def through_dealer(link: Link, shapes: Shapes) -> Begun:
    """The same bytes to the other host and back, waited for in the same way."""
    door = link.door(1)
    asked, answered = (Layout(spec(shapes, ROWS)).nbytes for spec in (request_spec, reply_spec))

    def answer() -> None:
        router = link.bare(zmq.ROUTER, door, listens=True)
        reply = bytes(answered)

        def turn() -> bool:
            try:
                sender, _ = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            router.send_multipart([sender, reply])
            return True

        forever(turn, [router.getsockopt(zmq.FD)])

    def here() -> Timed:
        dealer = link.bare(zmq.DEALER, door, listens=False)
        poll, request = select.poll(), bytes(asked)
        poll.register(dealer.getsockopt(zmq.FD), select.POLLIN)

        def work(times: int) -> None:
            for _ in range(times):
                dealer.send(request)
                await_reply(dealer, poll, request)

        return per_call(work)

    link.beside(answer)
    return here


def await_reply(dealer: zmq.Socket[bytes], poll: select.poll, request: bytes) -> None:
    """Wait. A first request was seen to get lost now and then; SRL asks again, too, and then both may be answered."""
    until = time.monotonic() + PATIENCE_SECONDS
    while not arrived(dealer):
        if not poll.poll(BEAT_SECONDS * 1000):
            if time.monotonic() > until:
                raise TimeoutError("nobody answers")
            dealer.send(request)
            time.sleep(BEAT_SECONDS)
            while arrived(dealer):
                until = 0.0
            if not until:
                return


def arrived(one: zmq.Socket[bytes]) -> bool:
    """Whether a message was here; it is taken."""
    try:
        one.recv(zmq.NOBLOCK)
    except zmq.Again:
        return False
    return True


# What is compared


@dataclass(frozen=True)
class Pair:
    """Something of ours and the bare way to do the same."""

    name: str
    edge: str
    curve: bool
    nbytes: int
    ours: Begun
    base: Begun


def pairs(stack: ExitStack, hosts: Hosts) -> Iterator[Pair]:
    """Everything that is compared."""
    segments = segments_of(MIB)
    nbytes = segments.layout.nbytes
    for curve in (True, False):
        link = Link(stack, hosts, curve=curve)
        ours, base = through_gate(link, segments), through_pull(link, nbytes)
        yield Pair("segments of 1 MiB", "train", curve, nbytes, ours, base)
        if not curve:
            base = through_pull(link, nbytes)
            yield Pair("bare ZeroMQ, against TCP", "", curve, nbytes, base, through_tcp(link, nbytes))
        for size, obs in OBSERVATIONS.items():
            shapes = shapes_of(obs)
            asked = Layout(request_spec(shapes, ROWS)).nbytes
            ours, base = through_client(link, shapes), through_dealer(link, shapes)
            yield Pair(f"request of {size}", "act", curve, asked, ours, base)


def measure(rounds: int, seconds: float) -> list[Row]:
    """All comparisons, in turns."""
    with Hosts(2) as hosts, ExitStack() as stack, on(hosts, 0):
        compared = list(pairs(stack, hosts))
        both = [(pair.ours(), pair.base()) for pair in compared]
        taken: list[list[tuple[float, float]]] = [[] for _ in compared]
        for _ in range(rounds):
            for (ours, base), times in zip(both, taken, strict=True):
                times.append((ours(seconds), base(seconds)))
    return [row(pair, times) for pair, times in zip(compared, taken, strict=True)]


def row(pair: Pair, times: list[tuple[float, float]]) -> Row:
    """The medians of a comparison."""
    ratios = sorted(ours / base if pair.edge == "act" else base / ours for ours, base in times)
    ours, base = (statistics.median(side) for side in zip(*times, strict=True))
    middle = statistics.median(ratios)
    return Row(pair.name, pair.edge, pair.curve, pair.nbytes, ours, base, middle, ratios[0], ratios[-1])


def table(rows: list[Row]) -> str:
    """The rows for people."""
    lines = [f"{'':36} {'encrypted':9} {'takes':>10} {'bare':>10} {'MB/s':>7} {'bare':>7} {'ratio':>6}"]
    for one in rows:
        speeds = [one.nbytes / taken / 1e6 for taken in (one.seconds, one.base_seconds)]
        wanted = {"train": ", speed; wanted >= 0.8", "act": ", time; wanted <= 1.5"}.get(one.edge, ", speed")
        lines.append(
            f"{one.name:36} {'yes' if one.curve else 'no':9} "
            f"{one.seconds * 1e6:7.1f} us {one.base_seconds * 1e6:7.1f} us "
            f"{speeds[0]:7.0f} {speeds[1]:7.0f} {one.ratio:6.2f}   ({one.lowest:.2f} to {one.highest:.2f}{wanted})"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the network edges cost, against bare ZeroMQ.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--rounds", type=int, default=7, help="how often everything is measured (7)")
    parser.add_argument("--seconds", type=float, default=0.7, help="how long each time (0.7)")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.seconds)
    print(json.dumps([asdict(one) for one in rows], indent=2) if arguments.json else table(rows))


if __name__ == "__main__":
    main()
