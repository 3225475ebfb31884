"""The act edge answers each request once and to the one who asked, whatever carries it."""

import select
import time
from contextlib import ExitStack, closing

import numpy as np
import pytest

from srl.memory import Channel, Listener, Memory
from srl.streams.asked import ActServer
from srl.streams.base import reply_spec, request_spec
from srl.streams.net import NetActClient, NetAsked
from srl.streams.shm import LANE, Lane, ShmActClient, ShmAsked, act_bytes
from srl.tree import copy_into, leaves, tree_map, zeros
from srl.wire import Keys

from .shapes import SHAPES

LANES = [Lane(0, 0, 2), Lane(1, 0, 2), Lane(2, 1, 3), Lane(3, 1, 3)]


class Shm:
    """Two actors with two lanes each; policy workers read one pipe."""

    def __init__(self, stack):
        self.memory, self.requests = Memory(act_bytes(SHAPES, LANES)), Channel(LANE)
        self.replies = [Channel(LANE), Channel(LANE)]
        for resource in (self.memory, self.requests, *self.replies):
            stack.enter_context(closing(resource))
        self.clients = [ShmActClient(SHAPES, LANES, self.memory, self.requests, channel) for channel in self.replies]

    def source(self):
        return ShmAsked(SHAPES, LANES, self.memory, self.requests, dict(enumerate(self.replies)))


class Net:
    """The same over sockets; both policy workers have a door of their own."""

    def __init__(self, stack):
        self.stack, self.keys = stack, Keys.new()
        self.doors: list[Listener] = []
        self.asking = [self._client(LANES[:2]), self._client(LANES[2:])]
        self.clients = list(self.asking)

    def _client(self, lanes):
        return self.stack.enter_context(closing(NetActClient(SHAPES, lanes, [], self.keys)))

    def source(self):
        self.doors.append(self.stack.enter_context(closing(Listener())))
        for client in self.asking:
            client.knock_at([door.address for door in self.doors])
        return self.stack.enter_context(closing(NetAsked(SHAPES, LANES, self.doors[-1], self.keys, version=lambda: 0)))


class Both(Net):
    """The first actor is on the policy worker's host, the second is not."""

    def __init__(self, stack):
        super().__init__(stack)
        self.near = Shm(stack)
        self.clients[0] = self.near.clients[0]


@pytest.fixture(params=[Shm, Net, Both])
def edge(request):
    """An edge, and a function that makes a policy worker's end."""
    with ExitStack() as stack:
        one = request.param(stack)

        def server(max_batch):
            sources = [one.near.source()] if isinstance(one, Both) else []
            return ActServer([*sources, one.source()], LANES, max_batch)

        yield one.clients, server


def eventually(end, take, wanted=bool):
    """What an end of an edge has once the kernel says that there is something."""
    deadline = time.monotonic() + 10
    while not wanted(got := take()):
        assert time.monotonic() < deadline, "nothing came"
        select.select(end.fds(), [], [], 1.0)
    return got


def request_of(lane, number):
    """A request whose every leaf says who asks."""
    return tree_map(lambda leaf: leaf + np.asarray(number).astype(leaf.dtype), zeros(request_spec(SHAPES, lane.rows)))


def reply_to(request):
    """A reply that depends on each row of the request."""
    number = request["obs"]["seen"][:, 0]
    reply = zeros(reply_spec(SHAPES, len(number)))
    for name in ("action", "value", "log_prob"):
        copy_into(reply[name], number)
    copy_into(reply["state"]["h"], number[:, None] + 1)
    return reply


def test_every_request_is_answered_once_and_to_the_one_who_asked(edge):
    clients, server = edge
    servers = [server(1024)]
    answered = []
    for at in (3, 0, 1):
        clients[LANES[at].actor].send(at, request_of(LANES[at], 10 + at))
    while len(answered) < 3:
        lanes, request = eventually(servers[0], servers[0].take)
        servers[0].answer(lanes, reply_to(request), version=42)
        answered += lanes
    assert sorted(answered) == [0, 1, 3]
    assert servers[0].take() is None
    for client, wanted in ((clients[0], [0, 1]), (clients[1], [3])):
        here = []
        while len(here) < len(wanted):
            here += eventually(client, client.poll)
        assert sorted(here) == wanted
        assert client.poll() == []
        for at in wanted:
            reply, version = client.reply(at)
            assert version == 42
            np.testing.assert_array_equal(reply["value"], np.full(LANES[at].rows, 10.0 + at))
            np.testing.assert_array_equal(reply["state"]["h"], np.full((LANES[at].rows, 4), 11.0 + at))


def test_a_request_arrives_whole(edge):
    clients, server = edge
    server = server(1024)
    sent = request_of(LANES[0], 1)
    clients[0].send(0, sent)
    _, request = eventually(server, server.take)
    for (path, got), (_, wanted) in zip(leaves(request), leaves(sent), strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=str(path))


@pytest.mark.parametrize(("max_batch", "sizes"), [(1, [1, 1, 1]), (6, [2, 1]), (8, [2, 1]), (9, [3])])
def test_a_batch_takes_all_that_waits_but_not_more_rows_than_allowed(max_batch, sizes):
    with ExitStack() as stack:
        edge = Shm(stack)
        server = ActServer([edge.source()], LANES, max_batch)
        for at in (0, 2, 3):
            edge.clients[LANES[at].actor].send(at, request_of(LANES[at], at))
        assert [len(server.take()[0]) for _ in sizes] == sizes
        assert server.take() is None


def test_what_comes_over_both_transports_is_one_batch():
    with ExitStack() as stack:
        edge = Both(stack)
        server = ActServer([edge.near.source(), edge.source()], LANES, 1024)
        edge.clients[1].send(2, request_of(LANES[2], 2))
        remote = server._sources[1]
        eventually(remote, lambda: remote._wire.socket.poll(0))
        edge.clients[0].send(0, request_of(LANES[0], 0))
        lanes, request = server.take()
        assert lanes == [0, 2]
        assert len(request["first"]) == 5


def test_any_of_several_policy_workers_may_answer(edge):
    clients, server = edge
    servers = [server(1), server(1)]
    for at in (0, 2):
        clients[LANES[at].actor].send(at, request_of(LANES[at], at))
    answered = 0
    while answered < 2:
        for one in servers:
            if (batch := one.take()) is not None:
                one.answer(batch[0], reply_to(batch[1]), version=7)
                answered += 1
        select.select([fd for one in servers for fd in one.fds()], [], [], 0.1)
    for client, lane in ((clients[0], 0), (clients[1], 2)):
        assert eventually(client, client.poll) == [lane]
        assert client.reply(lane)[1] == 7


def test_a_request_is_asked_again_in_a_new_epoch_and_answered_once(edge):
    clients, server = edge
    server = server(1024)
    clients[0].send(0, request_of(LANES[0], 5))
    eventually(server, server.take)
    server.begin(1)
    clients[0].ask_again(1)
    lanes, request = eventually(server, server.take)
    server.answer(lanes, reply_to(request), version=3)
    assert eventually(clients[0], clients[0].poll) == [0]
    assert clients[0].poll() == []
    np.testing.assert_array_equal(clients[0].reply(0)[0]["value"], [5.0, 5.0])


def test_a_policy_worker_that_comes_back_at_the_same_door_answers_what_is_asked_again():
    with ExitStack() as stack:
        edge = Net(stack)
        first, client = edge.source(), edge.clients[0]
        client.send(0, request_of(LANES[0], 1))
        eventually(first, lambda: first.take(9))
        first.close()
        again = NetAsked(SHAPES, LANES, edge.doors[0], edge.keys, 1, version=lambda: 0)
        second = ActServer([stack.enter_context(closing(again))], LANES, 99)
        client.ask_again(1)
        lanes, request = eventually(second, second.take)
        second.answer(lanes, reply_to(request), version=8)
        assert eventually(client, client.poll) == [0]


def test_a_request_waits_for_the_weights_it_asks_for():
    with ExitStack() as stack:
        edge, newest = Net(stack), [3]
        source = edge.source()
        news = stack.enter_context(closing(Channel("<q")))
        source._version, source._news = lambda: newest[0], news
        client = edge.clients[0]
        client.refresh(4)
        client.send(0, request_of(LANES[0], 1))
        eventually(source, lambda: source.take(9) or source._early)
        assert source.take(9) == []
        newest[0] = 4
        news.put(4)
        assert select.select(source.fds(), [], [], 10)[0]
        assert [lane for lane, _ in source.take(9)] == [0]
        assert source.take(9) == []


def test_what_is_not_of_the_agreed_size_is_refused_and_counted():
    with ExitStack() as stack:
        edge = Net(stack)
        source = edge.source()
        client = edge.clients[0]
        client._wire.send([0, 0, 1, 0], b"short")
        client._wire.send([99, 0, 1, 0], b"")
        client._wire.send(["lane", 0, 1, 0], b"")
        client._wire.send({"lane": 0})
        client._wire.socket.send_multipart([b"\xc1", b"", b"three"])
        client.send(0, request_of(LANES[0], 1))
        assert [lane for lane, _ in eventually(source, lambda: source.take(9))] == [0]
        assert source._wire.refused == 5
