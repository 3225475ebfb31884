"""The segments an actor writes are those of a slow literal simulation, whatever their length."""

from functools import partial

import numpy as np
import pytest

from srl.envs.base import make
from srl.envs.fake import Counting, NativeVector
from srl.memory import Channel, Memory
from srl.streams.base import Slot, segment_spec
from srl.streams.inline import InlineClient
from srl.streams.shm import CREDIT, FULL, Lane, Segments, ShmConsumer, ShmProducer
from srl.tree import leaves, tree_map, zeros
from srl.workers.actor import Actor, Rollout

from .literal import SHAPES, ConstantWeights, Scripted, timeline

LENGTHS, ENDS = (3, 1, 7, 2), ("terminated", "truncated", "both")
ROWS = 3


def counting(rows):
    """Rows that are all alike."""
    return make(partial(Counting, lengths=LENGTHS, ends=ENDS), rows), [LENGTHS] * rows


def native(mode, rows):
    """Rows whose episodes begin with different lengths."""
    turns = [LENGTHS[at % 4 :] + LENGTHS[: at % 4] for at in range(rows)]
    return make(partial(NativeVector, mode=mode, lengths=LENGTHS, ends=ENDS), rows), turns


SOURCES = {"single": counting, "native": partial(native, "NextStep")}


def fresh_segment(rollout, chunk):
    """A segment full of what an earlier one left behind."""
    return tree_map(lambda leaf: np.full_like(leaf, 1), zeros(segment_spec(SHAPES, rollout, ROWS, chunk)))


def written(envs, rollout, chunk, count):
    """So many segments in a row, as a rollout writes them; its last version is the number of the row."""
    policy, version = Scripted(), 0
    actor = Rollout(envs, SHAPES, seed=1, chunk=chunk)
    for number in range(count):
        actor.begin(Slot(number, 0, number, 0, fresh_segment(rollout, chunk)))
        full = False
        while not full:
            full = actor.advance(policy.act(actor.request()), version)
            version += 1
        yield actor.finish().segment


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("rollout", "chunk"), [(1, None), (2, 1), (4, 2), (5, None), (12, 3), (30, 30), (30, 5)])
def test_segments_equal_a_literal_simulation(source, rollout, chunk):
    envs, turns = SOURCES[source](ROWS)
    segments = list(written(envs, rollout, chunk, -(-60 // rollout)))
    rows = [timeline(turn, ENDS, len(segments) * rollout + 1) for turn in turns]
    for at, segment in enumerate(segments):
        for b in range(ROWS):
            check(segment, b, rows[b][at * rollout : (at + 1) * rollout + 1], chunk or rollout)
        np.testing.assert_array_equal(segment["version"], np.arange(at * rollout, (at + 1) * rollout))


def check(segment, b, rows, chunk):
    """One column of a segment against its rows and the row after them."""
    for name in ("obs", "first"):
        np.testing.assert_array_equal(segment[name][:, b], [row[name] for row in rows], err_msg=name)
    steps = rows[:-1]
    for name in ("action", "reward", "terminated", "truncated", "valid", "log_prob", "value"):
        np.testing.assert_array_equal(segment[name][:, b], [row[name] for row in steps], err_msg=name)
    np.testing.assert_array_equal(segment["state"]["h"][:, b], [row["state"] for row in rows[::chunk]])
    for t, row in enumerate(steps):
        if row["episode_length"] is not None:
            assert segment["episode_return"][t, b] == row["episode_return"]
            assert segment["episode_length"][t, b] == row["episode_length"]


def test_noise_is_drawn_anew_for_every_row_and_decided_by_the_seed():
    def noise(seed):
        rollout = Rollout(counting(ROWS)[0], SHAPES, seed=seed, chunk=None)
        rollout.begin(Slot(0, 0, 0, 0, fresh_segment(9, None)))
        drawn = []
        for _ in range(9):
            request = rollout.request()
            drawn.append(request["noise"].copy())
            rollout.advance(Scripted().act(request), 0)
        return np.stack(drawn)

    assert len(np.unique(noise(1))) == 9 * ROWS
    assert ((noise(1) >= 0) & (noise(1) < 1)).all()
    np.testing.assert_array_equal(noise(1), noise(1))
    assert (noise(1) != noise(2)).all()


def test_masks_are_written_for_every_row_and_carried_over():
    envs = make("srl.envs.fake:Masked", 2)
    shapes = type(SHAPES)(envs.obs, envs.action, envs.mask, {}, SHAPES.extras, 1, {})
    rollout = Rollout(envs, shapes, seed=1, chunk=None)
    last = None
    for number in range(8):
        rollout.begin(Slot(number, 0, number, 0, zeros(segment_spec(shapes, 5, 2, None))))
        full = False
        while not full:
            request = rollout.request()
            action = request["mask"].argmax(axis=1)
            full = rollout.advance({"action": action, "log_prob": 0, "value": 0}, 0)
        segment = rollout.finish().segment
        assert segment["mask"].any(axis=-1).all()
        if last is not None:
            np.testing.assert_array_equal(segment["mask"][0], last)
        last = segment["mask"][-1].copy()


@pytest.fixture
def stream():
    """An actor with two rollouts, and the trainer's end of its stream."""
    segments, lanes = Segments(SHAPES, 4, ROWS, None), [Lane(0, 0, ROWS), Lane(1, 0, ROWS)]
    memory, granted, full = Memory(2 * segments.layout.nbytes), Channel(CREDIT), Channel(FULL)
    consumer = ShmConsumer(segments, memory, lanes, [granted], full, batch=2, max_lag=0)
    rollouts = [Rollout(counting(ROWS)[0], SHAPES, seed=seed, chunk=None) for seed in (1, 2)]
    producer = ShmProducer(segments, memory, granted, full)
    act = InlineClient(Scripted(), ConstantWeights())
    quiet = {"keep": lambda *_: None, "tell": lambda _: None}
    yield Actor(rollouts, act, producer, act_lanes=[5, 6], train_lanes=[0, 1], **quiet), consumer
    for resource in (memory, granted, full):
        resource.close()


def run_dry(actor):
    while actor.step():
        pass


def test_an_actor_works_while_it_has_credits_and_waits_without(stream):
    actor, consumer = stream
    assert not actor.step()
    assert actor.waits == "wait-credit"
    consumer.grant(0)
    assert actor.step()
    assert actor.waits == "wait-act"
    run_dry(actor)
    assert actor.waits == "wait-credit"
    assert [slot.lane for slot in consumer.take(0)] == [0, 1]
    assert not actor.step()


def test_an_actors_segments_are_those_of_its_rollouts(stream):
    actor, consumer = stream
    alone = [written(counting(ROWS)[0], 4, None, 3) for _ in range(2)]
    for version in range(3):
        consumer.grant(version)
        run_dry(actor)
        slots = consumer.take(version)
        for slot in slots:
            expected = next(alone[slot.lane])
            for (path, got), (_, wanted) in zip(leaves(slot.segment), leaves(expected), strict=True):
                if path[0] not in ("version", "episode_return", "episode_length"):
                    np.testing.assert_array_equal(got, wanted, err_msg=str(path))
            assert (slot.segment["version"] == 3).all()
        consumer.release(slots)


def test_a_credit_for_weights_that_are_not_published_is_an_error(stream):
    actor, consumer = stream
    consumer.grant(4)
    with pytest.raises(RuntimeError, match="version 4, but 3"):
        actor.step()


def test_an_actor_takes_no_commands(stream):
    with pytest.raises(ValueError, match="dance"):
        stream[0].command({"do": "dance"})


def test_time_is_charged_to_acting_environments_and_sending(stream):
    actor, consumer = stream
    consumer.grant(0)
    run_dry(actor)
    assert set(actor.clock.collect()["phases"]) == {"env", "act", "send"}
