"""Both edges in any order of steps and deaths: nothing torn, nothing twice, credits conserved, waits that end."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.memory import Channel, Memory
from srl.streams.shm import LANE, Lane, Segments, ShmActClient, ShmActServer, ShmProducer, act_bytes

from .schedule import ROLLOUT, ROWS, Schedule
from .shapes import SHAPES, SMALL
from .test_shm import STREAMS, reply_to, request_of

MOVES = st.lists(
    st.tuples(st.sampled_from(["receive", "start", "finish", "update", "die"]), st.integers(0, 8)), max_size=80
)


class Mortal(Schedule):
    """A schedule whose actors may die."""

    def die(self, actor):
        """An actor dies with all it holds, some of it half written; its trainer hears of it, then it lives again."""
        lanes = [lane.index for lane in self.consumer._lanes.values() if lane.actor == actor]
        for lane in lanes:
            self.granted[lane].clear()
            slot = self.started.pop(lane, None)
            if slot is not None:
                slot.segment["reward"][:1] = -1
        self.consumer.reclaim(actor, self.version)
        segments = Segments(SMALL, ROLLOUT, ROWS, None)
        self.producers[actor] = ShmProducer(segments, self.memory, self.credits[actor], self.full)

    def conserved(self):
        """Every slot is in exactly one place."""
        consumer = self.consumer
        places = [
            *consumer._free,
            *(s.index for s in consumer._out.values()),
            *(s.index for s in consumer._ready.values()),
        ]
        assert sorted(places) == list(range(self.slots))
        assert sum(consumer._held.values()) == len(consumer._out)


@settings(deadline=None, max_examples=300)
@given(STREAMS, MOVES)
def test_a_train_stream_survives_actors_that_die(stream, moves):
    schedule = Mortal(**stream)
    actor_of = [actor for actor, count in enumerate(stream["lanes_per_actor"]) for _ in range(count)]
    try:
        for move, who in moves:
            lane = who % len(actor_of)
            if move == "receive":
                schedule.receive(actor_of[lane])
            elif move == "start":
                schedule.start(lane)
            elif move == "finish":
                schedule.finish(lane, actor_of)
            elif move == "die":
                schedule.die(actor_of[lane])
            else:
                schedule.update()
            schedule.conserved()
        tickets = [ticket for ticket, _ in schedule.taken]
        assert len(tickets) == len(set(tickets)), "a segment was learned from twice"
        # Whoever is left goes on: full segments come, and with them the next update.
        for _ in range(3):
            schedule.fill_everything(actor_of)
            dropped = schedule.consumer.dropped
            assert schedule.update() or schedule.consumer.dropped > dropped
    finally:
        schedule.close()


LANES = [Lane(0, 0, 2), Lane(1, 0, 2), Lane(2, 1, 3)]
SERVERS = 2


class ActEdge:
    """Clients and servers of an act edge, any of which may die; what control does then is done here."""

    def __init__(self):
        self.memory, self.requests = Memory(act_bytes(SHAPES, LANES)), Channel(LANE)
        self.replies = [Channel(LANE), Channel(LANE)]
        self.epoch = self.number = 0
        self.clients = [self._client(at) for at in range(2)]
        self.servers = [self._server() for _ in range(SERVERS)]
        self.in_hand: list = [None] * SERVERS
        self.asked: dict[int, int] = {}

    def _client(self, at):
        return ShmActClient(SHAPES, LANES, self.memory, self.requests, self.replies[at], self.epoch)

    def _server(self):
        return ShmActServer(SHAPES, LANES, self.memory, self.requests, self.replies, 3, self.epoch)

    def ask(self, lane):
        if lane not in self.asked:
            self.number += 1
            self.asked[lane] = self.number
            self.clients[LANES[lane].actor].send(lane, request_of(LANES[lane], self.number))

    def take(self, at):
        if self.in_hand[at] is None and (batch := self.servers[at].take()) is not None:
            # What it computes from is what it saw when it took it.
            lanes, request = batch
            self.in_hand[at] = lanes, reply_to(request)

    def answer(self, at):
        if self.in_hand[at] is not None:
            lanes, reply = self.in_hand[at]
            self.servers[at].answer(lanes, reply, version=1)
            self.in_hand[at] = None

    def read(self, actor):
        for lane in self.clients[actor].poll():
            wanted = self.asked.pop(lane)
            reply, _ = self.clients[actor].reply(lane)
            np.testing.assert_array_equal(reply["value"], np.full(LANES[lane].rows, float(wanted)))

    def _next_epoch(self, dead_server=None):
        self.epoch += 1
        for at, server in enumerate(self.servers):
            if at != dead_server:
                self.answer(at)  # a policy worker hears of the epoch between two steps
                server.epoch = self.epoch

    def client_dies(self, at):
        self._next_epoch()
        for lane in LANES:
            if lane.actor == at:
                self.asked.pop(lane.index, None)
        self.clients[at] = self._client(at)
        self.clients[1 - at].ask_again(self.epoch)

    def server_dies(self, at):
        self.in_hand[at] = None
        self._next_epoch(at)
        self.servers[at] = self._server()
        for client in self.clients:
            client.ask_again(self.epoch)

    def close(self):
        for resource in (self.memory, self.requests, *self.replies):
            resource.close()


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "take", "answer", "read", "client_dies", "server_dies"]), st.integers(0, 5)
        ),
        max_size=80,
    )
)
def test_an_act_edge_survives_whoever_dies(moves):
    edge = ActEdge()
    try:
        for move, who in moves:
            getattr(edge, move)(who % (len(LANES) if move == "ask" else 2))
        for _ in range(len(LANES)):
            for at in range(SERVERS):
                edge.answer(at)
                edge.take(at)
                edge.answer(at)
        for actor in range(2):
            edge.read(actor)
        assert edge.asked == {}, "somebody waits for ever"
    finally:
        edge.close()


def test_a_note_is_asked_of_every_lane_and_heard():
    schedule = Schedule([1, 2], batch=3, max_lag=0)
    try:
        schedule.fill_everything([0, 1, 1])
        slots = schedule.consumer.take(0)
        schedule.consumer.release(slots)
        schedule.consumer.grant(1, mark=True)
        assert not schedule.consumer.noted(1)
        for producer in schedule.producers:
            for slot in producer.take():
                assert slot.mark == 1
                producer.note(slot.lane, slot.mark)
        assert schedule.consumer.noted(1)
    finally:
        schedule.close()
