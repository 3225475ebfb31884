"""A train stream and its weights across hosts: as on one host, whatever is lost, late, said twice, or dies."""

import select
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest

from srl.memory import Channel, Listener, Memory
from srl.params.base import Board, params_bytes
from srl.streams import far
from srl.streams.far import TO_HOST, TO_TRAINER, Full, Gate, Have, Hello, Note, Outpost, Weights
from srl.streams.shm import CREDIT, FULL, Lane, Segments, ShmConsumer, ShmProducer, slots_far
from srl.tree import Layout, Spec
from srl.wire import Called, Keys, Served

from .schedule import ROLLOUT, ROWS, Schedule
from .shapes import SMALL

PARAMS = {"w": Spec((1000,), "float32")}
DIGEST = b"same"


class Host:
    """Another host: its own memory, its own pipes, an outpost."""

    def __init__(self, name, address, keys, segments, lanes, all_lanes, slots, digest=DIGEST):
        self.name, self.address, self.keys, self.digest = name, address, keys, digest
        self.actors = sorted({lane.actor for lane in lanes})
        self.nbytes = segments.layout.nbytes
        self.memory = Memory(slots_far(len(lanes), all_lanes, slots) * self.nbytes)
        self.credits = {actor: Channel(CREDIT) for actor in self.actors}
        self.full = Channel(FULL)
        self.lanes = {lane.index: lane.actor for lane in lanes}
        self.params = Memory(params_bytes(PARAMS))
        self.board = Board(PARAMS, self.params)
        self.outpost = self._outpost()

    def _outpost(self):
        wire = Called([self.address], self.keys, TO_HOST, 10_000, self.name)
        return Outpost(wire, self.digest, self.memory, self.nbytes, self.lanes, self.credits, self.full)

    def turn(self):
        return self.outpost.turn(self.board.version, self.board.write)

    def lose(self):
        """What is under way on the link is lost; the link comes back."""
        wire, self.outpost._wire = self.outpost._wire, Called([self.address], self.keys, TO_HOST, 10_000, self.name)
        wire.close()

    def close(self):
        self.outpost.close()
        for resource in (self.memory, self.full, self.params, *self.credits.values()):
            resource.close()


class FarSchedule(Schedule):
    """Actor 0 lives with the trainer, the others on two more hosts."""

    def __init__(self, lanes_per_actor, **stream):
        super().__init__(lanes_per_actor, **stream)
        segments = Segments(SMALL, ROLLOUT, ROWS, None)
        lanes = [Lane(index, actor, ROWS) for index, actor in enumerate(self.owners)]
        self.keys, self.door = Keys.new(), Listener()
        self.params = Memory(params_bytes(PARAMS))
        self.board = Board(PARAMS, self.params)
        wire = Served(self.door, self.keys, TO_TRAINER, 10_000)
        nbytes = segments.layout.nbytes
        for channel in self.credits:
            channel.take()
        self.gate = Gate(wire, DIGEST, self.memory, nbytes, dict(enumerate(self.credits)), self.full, self.board)
        settings = {name: stream[name] for name in ("batch", "max_lag")}
        self.consumer = ShmConsumer(
            segments, self.memory, lanes, self.gate.grants(), self.gate, late=stream.get("late", "wait"), **settings
        )
        self.hosts = []
        for name, actors in (("a", [1]), ("b", [2, 3])):
            here = [lane for lane in lanes if lane.actor in actors]
            if here:
                self.hosts.append(Host(name, self.door.address, self.keys, segments, here, len(lanes), self.slots))
        for host in self.hosts:
            for actor in host.actors:
                self.producers[actor] = ShmProducer(segments, host.memory, host.credits[actor], host.full)
        self.publish()
        self.consumer.grant(0)

    def host_of(self, actor):
        return next((host for host in self.hosts if actor in host.actors), None)

    def place(self, actor, slot):
        host = self.host_of(actor)
        return (host.name if host else "", slot.index)

    def publish(self):
        self.board.publish(self.version, 0, lambda at: self.board.blocks[at]["w"].fill(self.version))
        self.gate.publish(self.version, 0)

    def start(self, lane):
        host = self.host_of(self.owners[lane])
        if host and self.granted[lane] and lane not in self.started:
            # A credit never comes before the weights it asks for.
            assert host.board.version >= self.granted[lane][0].oldest
            newest, self.version = self.version, host.board.version
            super().start(lane)
            self.version = newest
            return
        super().start(lane)

    def finish(self, lane, actor_of):
        host = self.host_of(self.owners[lane])
        newest = self.version
        if host:
            self.version = host.board.version
        super().finish(lane, actor_of)
        self.version = newest

    def pump(self, seconds=0.002):
        """Let what is under way arrive."""
        self.consumer._receive(self.version)
        for host in self.hosts:
            host.turn()
        fds = [*self.gate.waits(), *(fd for host in self.hosts for fd in host.outpost.fds())]
        select.select(fds, [], [], seconds)

    def die(self, actor):
        """An actor dies with all it holds; the trainer hears of it, and the outpost, in either order."""
        for lane, owner in enumerate(self.owners):
            if owner == actor:
                self.granted[lane].clear()
                self.started.pop(lane, None)
        host = self.host_of(actor)
        if host:
            host.outpost.reclaim(actor)
        self.consumer.reclaim(actor, self.version)
        self.consumer.join(actor, self.version)
        if host:
            host.outpost.hello(host.board.version)
        segments = Segments(SMALL, ROLLOUT, ROWS, None)
        memory, credit, full = (
            (host.memory, host.credits[actor], host.full) if host else (self.memory, self.credits[actor], self.full)
        )
        self.producers[actor] = ShmProducer(segments, memory, credit, full)

    def close(self):
        for host in self.hosts:
            host.close()
        self.gate.close()
        super().close()
        for resource in (self.params, self.door):
            resource.close()


def drive(schedule, updates, random, mishap=None, rate=0.05):
    """Random moves until so many updates were made; no wait may last."""
    deadline = time.monotonic() + 60
    while len(schedule.taken) < updates * schedule.batch:
        assert time.monotonic() < deadline, "every credit is filled, and yet the trainer waits"
        for lane, actor in enumerate(schedule.owners):
            move = random.random()
            if move < 0.8:
                schedule.receive(actor)
                schedule.start(lane)
            if move > 0.2:
                schedule.finish(lane, schedule.owners)
        if mishap is not None and random.random() < rate:
            mishap(random)
        schedule.update()
        schedule.pump()
    tickets = [ticket for ticket, _ in schedule.taken]
    assert len(tickets) == len(set(tickets)), "a segment was learned from twice"


STREAMS = [
    {"lanes_per_actor": [1, 1, 1], "batch": 3, "max_lag": 0},
    {"lanes_per_actor": [2, 1, 2, 1], "batch": 2, "max_lag": 2},
    {"lanes_per_actor": [1, 3, 2], "batch": 4, "max_lag": 1, "late": "drop"},
]


@pytest.fixture(params=STREAMS)
def schedule(request):
    with closing(FarSchedule(**request.param)) as one:
        yield one


def test_a_stream_with_actors_on_three_hosts_is_as_on_one(schedule):
    drive(schedule, 200, np.random.default_rng(1))
    assert schedule.gate.received > 100
    for host in schedule.hosts:
        # Weights arrive whole, and a host only ever has the newest it could have.
        while host.board.version < schedule.version:
            schedule.pump()
        np.testing.assert_array_equal(host.board.newest(), schedule.board.newest())


def test_it_survives_actors_that_die(schedule):
    def mishap(random):
        schedule.die(int(random.integers(len(set(schedule.owners)))))

    schedule.posted = Anything()
    drive(schedule, 200, np.random.default_rng(2), mishap)


def test_what_a_broken_link_swallowed_is_said_again(schedule, monkeypatch):
    monkeypatch.setattr(far, "HELLO_SECONDS", 0.05)
    lost = []

    def mishap(random):
        lost.append(schedule.hosts[int(random.integers(len(schedule.hosts)))])
        lost[-1].lose()

    drive(schedule, 400, np.random.default_rng(3), mishap, rate=0.01)
    assert lost


class Anything(set):
    """Tickets of dead actors were posted, or not."""

    def remove(self, ticket):
        self.discard(ticket)


def test_a_host_whose_segments_are_others_is_refused():
    with ExitStack() as stack:
        schedule = stack.enter_context(closing(FarSchedule([1, 1], batch=2, max_lag=0)))
        segments = Segments(SMALL, ROLLOUT + 1, ROWS, None)
        door, keys = schedule.door.address, schedule.keys
        other = stack.enter_context(closing(Host("c", door, keys, segments, [Lane(1, 1, ROWS)], 2, 2, b"other")))

        def turns():
            for _ in range(1000):
                other.turn()
                schedule.pump()

        with pytest.raises(RuntimeError, match="not those of this trainer"):
            turns()


def test_who_has_not_the_keys_is_not_heard_and_nonsense_of_who_has_is_counted():
    with ExitStack() as stack:
        schedule = stack.enter_context(closing(FarSchedule([1, 1], batch=2, max_lag=0)))
        stranger = stack.enter_context(closing(Called([schedule.door.address], Keys.new(), TO_HOST, 100)))
        half = Keys(schedule.keys.served, Keys.new().called)
        knows_the_door = stack.enter_context(closing(Called([schedule.door.address], half, TO_HOST, 100)))
        guest = stack.enter_context(closing(Called([schedule.door.address], schedule.keys, TO_HOST, 100, "guest")))
        for one in (stranger, knows_the_door, guest):
            one.send(Have(3))
            one.send(Hello([7], 0, [], DIGEST))
        guest.socket.send_multipart([b"\x93garbage", b"", b""])
        guest.send(Full(10**9), b"x" * 5)
        guest.send({"type": "Note", "lane": "x"})
        wire = schedule.gate._wire
        while wire._refused < 5 or wire.refused < 5 + 2 or not schedule.gate._hosts:
            schedule.pump()
        assert schedule.gate._hosts.keys() == {b"a"}
        drive(schedule, 20, np.random.default_rng(4))


def test_weights_go_out_once_to_each_host_and_only_the_newest():
    with closing(FarSchedule([1, 1, 1], batch=1, max_lag=3)) as schedule:
        sent = []
        send = schedule.gate._wire.send
        schedule.gate._wire.send = lambda to, header, block=None: (sent.append((to, header)), send(to, header, block))
        for host in schedule.hosts:
            while host.board.version < 0:
                schedule.pump()
        while any(host.ready_for is None for host in schedule.gate._hosts.values()):
            schedule.pump()
        sent.clear()
        for _ in range(5):
            schedule.version += 1
            schedule.publish()
        for host in schedule.hosts:
            while host.board.version < 5:
                schedule.pump()
        for name in (b"a", b"b"):
            versions = [header.version for to, header in sent if to == name and isinstance(header, Weights)]
            assert versions == [1, 5]


def test_notes_reach_the_trainer():
    with closing(FarSchedule([1, 1], batch=2, max_lag=0)) as schedule:
        host = schedule.hosts[0]
        while not schedule.gate._hosts:
            schedule.pump()
        host.full.put(-1 - 1, 9)
        arrived = []
        while not arrived:
            host.turn()
            arrived = schedule.gate.take()
        assert arrived == [(-2, 9)]
        assert Layout(PARAMS).nbytes == len(schedule.board.newest())
        assert Note(1, 9) == Note(1, 9)


def test_the_largest_block_passes_and_a_larger_one_does_not():
    largest = 1 << 20
    with ExitStack() as stack:
        door, keys = stack.enter_context(closing(Listener())), Keys.new()
        served = stack.enter_context(closing(Served(door, keys, TO_TRAINER, largest)))
        called = [stack.enter_context(closing(Called([door.address], keys, TO_HOST, 100))) for _ in range(2)]
        called[0].send(Full(0), bytes(largest + 1000))
        called[1].send(Full(1), bytes(largest))
        deadline = time.monotonic() + 10
        while (message := served.receive()) is None:
            assert time.monotonic() < deadline, "the largest block did not come"
            select.select(served.fds(), [], [], 1.0)
        assert (message[1], len(message[2])) == (Full(1), largest)
        assert served.receive() is None
