"""What the edges cost is what docs/architecture.md says, in counts: copies, memory, system calls, calls.

Observations and actions are so large here that nothing else weighs.
"""

from functools import partial
from itertools import count

import numpy as np
import pytest
import torch

from srl.envs.base import make
from srl.memory import Channel, Memory
from srl.params.base import params_bytes
from srl.params.shm import Publisher, Reader
from srl.streams.asked import ActServer
from srl.streams.base import Slot, reply_spec, request_spec, segment_spec
from srl.streams.inline import InlineClient
from srl.streams.shm import LANE, Lane, ShmActClient, ShmAsked, act_bytes
from srl.tree import Spec, spec_of, zeros
from srl.workers.actor import Rollout
from srl.workers.loader import Loader

from .counting import TorchCalls, calls, copies, fresh, grown, pipe_calls, watch
from .systems import CPU, ENVIRONMENTS, ROLLOUT, ROWS, STEP, WIDTH, Deaf, Lends, Newest, Still, System, shapes_with

LITTLE = WIDTH // 2
"""Bytes that may be taken for a moment: less than any part of an observation."""
OBJECT = 16
"""Bytes of the smallest object there is."""
PICTURES = shapes_with(Spec((WIDTH,), "uint8"))
LEVERS = shapes_with(Spec((), "float32"), action=Spec((WIDTH,), "uint8"))
"""Actions that are as large as the observations are otherwise."""
SMALL = partial(Lends, width=4)
"""Environments for what does not depend on the size of observations."""
READS = 8
"""System calls that read, at most, for a batch of segments: of credits, of full segments, and in vain."""
CALLS = {False: 105, True: 170}
"""Calls, at most, of a time step: inline, and over memory."""
LOAD_CALLS = 100
"""Calls, at most, to copy one more segment into a batch."""
TRANSPORTS = {"inline": False, "over memory": True}


@pytest.fixture
def watched(monkeypatch):
    """Every array that srl makes from now on counts what is written into it."""
    watch(monkeypatch)


@pytest.fixture
def system():
    """Builds systems, all closed in the end."""
    made = []

    def build(*args, **options):
        made.append(System(*args, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.fixture
def act_edge():
    """Builds both ends of an act edge over memory with so many lanes, and gives its memory too."""
    resources = []

    def build(shapes, count=1):
        lanes = [Lane(at, 0, ROWS) for at in range(count)]
        block, requests, replies = Memory(act_bytes(shapes, lanes)), Channel(LANE), Channel(LANE)
        resources.extend([block, requests, replies])
        client = ShmActClient(shapes, lanes, block, requests, replies)
        return client, ActServer([ShmAsked(shapes, lanes, block, requests, {0: replies})], lanes, 1024), block

    yield build
    for each in resources:
        each.close()


def rollout_of(shapes, envs):
    """A rollout that has begun a segment."""
    rollout = Rollout(envs, shapes, seed=1, chunk=None)
    rollout.begin(Slot(0, 0, 0, 0, zeros(segment_spec(shapes, ROLLOUT, ROWS, None))))
    return rollout


def reply_of(shapes):
    return zeros(reply_spec(shapes, ROWS))


def memory_of(block):
    return np.frombuffer(block.buffer, np.uint8)


# How often the bytes are copied


@pytest.mark.parametrize(("build", "times"), ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_an_observation_is_copied_into_the_segment_once_and_not_at_all_where_its_memory_is_lent(watched, build, times):
    rollout, reply = rollout_of(PICTURES, make(build, ROWS)), reply_of(PICTURES)
    rollout.request()
    assert copies(lambda: rollout.advance(reply, 0), STEP) == times


def test_the_row_that_two_segments_share_is_copied_twice_more(watched):
    rollout, reply = rollout_of(PICTURES, Deaf()), reply_of(PICTURES)
    slot = rollout.slot
    while not rollout.advance(reply, 0):
        pass
    assert copies(rollout.finish, STEP) == 1
    assert copies(lambda: rollout.begin(slot), STEP) == 1


def test_inline_a_policy_sees_the_segment_itself(watched):
    rollout, policy = rollout_of(PICTURES, Deaf()), Still(reply_of(PICTURES))
    client = InlineClient(policy, Newest())
    assert copies(lambda: client.send(0, rollout.request()), STEP) == 0
    assert copies(client.poll, STEP) == 0
    assert same_memory(policy.request["obs"], rollout.slot.segment["obs"][0])


def same_memory(one, other):
    return (one.ctypes.data, one.strides, one.shape) == (other.ctypes.data, other.strides, other.shape)


def test_over_memory_an_observation_is_copied_into_the_lanes_block_once_and_seen_there(watched, act_edge):
    client, server, block = act_edge(PICTURES, 2)
    request, taken = zeros(request_spec(PICTURES, ROWS)), []
    assert copies(lambda: client.send(1, request), STEP) == 1
    assert copies(lambda: taken.append(server.take()), STEP) == 0
    (lanes, seen) = taken[0]
    assert lanes == [1]
    assert np.shares_memory(seen["obs"], memory_of(block))


def test_over_memory_requests_are_copied_once_more_when_they_are_joined(watched, act_edge):
    client, server, _ = act_edge(PICTURES, 3)
    for lane in range(3):
        client.send(lane, zeros(request_spec(PICTURES, ROWS)))
    assert copies(server.take, 3 * STEP) == 1


def test_over_memory_an_action_is_copied_into_the_lanes_block_once_and_read_there(watched, act_edge):
    client, server, block = act_edge(LEVERS)
    client.send(0, zeros(request_spec(LEVERS, ROWS)))
    (lanes, _), reply, got = server.take(), reply_of(LEVERS), []
    assert copies(lambda: server.answer(lanes, reply, 0), STEP) == 1
    assert copies(client.poll, STEP) == 0
    assert copies(lambda: got.append(client.reply(0)), STEP) == 0
    assert np.shares_memory(got[0][0]["action"], memory_of(block))


def test_an_action_is_copied_into_the_segment_once(watched):
    rollout, reply = rollout_of(LEVERS, Deaf()), reply_of(LEVERS)
    rollout.request()
    assert copies(lambda: rollout.advance(reply, 0), STEP) == 1


@pytest.mark.parametrize("shapes", [PICTURES, LEVERS], ids=["observations", "actions"])
def test_a_lanes_block_has_room_for_one_copy(shapes):
    assert STEP <= act_bytes(shapes, [Lane(0, 0, ROWS)]) < STEP + LITTLE


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize(("shapes", "name", "rows"), [(PICTURES, "obs", ROLLOUT + 1), (LEVERS, "action", ROLLOUT)])
def test_a_segment_is_copied_into_the_batch_once_and_the_learner_gets_that_memory(shapes, name, rows, segments):
    spec, nbytes = segment_spec(shapes, ROLLOUT, ROWS, None), segments * rows * STEP
    slots = [Slot(at, 0, at, 0, zeros(spec)) for at in range(segments)]
    loader, got = Loader(CPU), []
    assert copies(lambda: got.append(loader.load(slots)), nbytes) == 1, "there is room for one batch"
    with TorchCalls() as done:
        assert copies(lambda: loader.load(slots), nbytes) == 0
    assert not done.counted
    slots[-1].segment[name][-1] = 7
    loader.load(slots)
    assert (got[0][name][-1, -ROWS:] == 7).all()


@pytest.fixture
def params():
    """Weights, their publisher, a reader, and the module that it keeps at the newest."""
    weights = {"large": torch.ones(STEP // 4), "small": torch.ones(3)}
    spec = {name: spec_of(tensor.numpy()) for name, tensor in weights.items()}
    block, module = Memory(params_bytes(spec)), torch.nn.Module()
    for name, tensor in weights.items():
        module.register_buffer(name, torch.zeros_like(tensor))
    yield weights, Publisher(spec, block), Reader(spec, block, module), module
    block.close()


def test_weights_are_copied_into_the_block_once_and_out_of_it_once(watched, params):
    weights, publisher, reader, module = params
    with TorchCalls() as done:
        assert copies(lambda: publisher.publish(1, 0, weights), STEP) == 1
    assert set(done.counted) <= {"detach", "cpu", "numpy"}
    with TorchCalls() as done:
        assert copies(reader.refresh, STEP) == 0
    assert done.counted == {"copy_": len(weights)}
    assert (module.large == 1).all()


def test_weights_that_are_not_newer_are_not_looked_at(params):
    weights, publisher, reader, _ = params
    publisher.publish(1, 0, weights)
    reader.refresh()
    with TorchCalls() as done:
        assert not reader.refresh()
    assert not done.counted


# Memory


@pytest.mark.parametrize("over_memory", TRANSPORTS.values(), ids=TRANSPORTS)
@pytest.mark.parametrize("build", [build for build, _ in ENVIRONMENTS.values()], ids=ENVIRONMENTS)
def test_no_step_and_no_segment_takes_memory_for_an_observation(system, build, over_memory):
    one = system(build, over_memory=over_memory)
    assert fresh(one.step) < LITTLE
    assert fresh(partial(one.updates, 2)) < LITTLE


@pytest.mark.parametrize("over_memory", TRANSPORTS.values(), ids=TRANSPORTS)
def test_no_segment_leaves_anything_behind(system, over_memory):
    one = system(SMALL, rollout=2, ring=2, over_memory=over_memory)
    assert grown(one.updates, 100) < 2 * 100 * OBJECT


def test_publishing_and_refreshing_takes_no_memory_and_leaves_nothing_behind(params):
    weights, publisher, reader, _ = params
    versions = count(1)

    def publish_and_refresh():
        publisher.publish(next(versions), 0, weights)
        reader.refresh()

    publish_and_refresh()
    assert fresh(publish_and_refresh) < LITTLE
    assert grown(publish_and_refresh, 100) < 100 * OBJECT


# System calls


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_request_takes_two_writes_and_all_that_wait_are_read_at_once(act_edge, lanes):
    client, server, _ = act_edge(LEVERS, lanes)
    request, reply = zeros(request_spec(LEVERS, ROWS)), zeros(reply_spec(LEVERS, lanes * ROWS))

    def ask():
        for lane in range(lanes):
            client.send(lane, request)
        taken, _ = server.take()
        server.answer(taken, reply, 0)
        for lane in client.poll():
            client.reply(lane)

    assert pipe_calls(ask) == (2 * lanes, 2)


def test_publishing_and_refreshing_takes_no_system_call(params):
    weights, publisher, reader, _ = params
    assert pipe_calls(lambda: publisher.publish(1, 0, weights)) == (0, 0)
    assert pipe_calls(reader.refresh) == (0, 0)


@pytest.mark.parametrize("ring", [1, 3])
@pytest.mark.parametrize("rollout", [4, 24])
def test_a_segment_takes_two_writes_however_long_it_is(system, rollout, ring):
    one = system(SMALL, rollout=rollout, ring=ring)
    writes, reads = pipe_calls(one.updates)
    assert writes == 2 * ring
    assert reads <= READS


@pytest.mark.parametrize("ring", [1, 3])
def test_over_memory_a_time_step_takes_two_writes_more_for_each_rollout_and_two_reads_for_all(system, ring):
    one = system(SMALL, rollout=24, ring=ring, over_memory=True)
    writes, reads = pipe_calls(one.updates)
    assert writes == 2 * ring + 24 * 2 * ring
    assert reads <= READS + 24 * 2


# Calls


@pytest.mark.parametrize("over_memory", TRANSPORTS.values(), ids=TRANSPORTS)
@pytest.mark.parametrize("kind", ["lent", "in place", "vector"])
def test_python_does_not_do_more_for_more_environments(system, kind, over_memory):
    build = partial(ENVIRONMENTS[kind][0], width=4)
    few, many = (system(build, rows=rows, over_memory=over_memory) for rows in (8, 64))
    assert calls(few.updates) == calls(many.updates)


def loading(segments, rollout):
    """What is called to load so many segments."""
    spec = segment_spec(LEVERS, rollout, ROWS, None)
    slots = [Slot(at, 0, at, 0, zeros(spec)) for at in range(segments)]
    loader = Loader(CPU)
    loader.load(slots)
    return calls(lambda: loader.load(slots))


def test_what_python_does_to_load_a_segment_does_not_depend_on_its_length_and_stays_within_its_budget():
    assert loading(1, rollout=4) == loading(1, rollout=24)
    assert (loading(3, rollout=4) - loading(2, rollout=4)).total() <= LOAD_CALLS


@pytest.mark.parametrize("over_memory", TRANSPORTS.values(), ids=TRANSPORTS)
def test_what_python_does_for_a_time_step_stays_within_its_budget(system, over_memory):
    one = system(SMALL, rollout=8, over_memory=over_memory)
    one.step()
    assert calls(one.step).total() <= CALLS[over_memory]
