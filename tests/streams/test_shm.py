"""The train edge keeps its law of lag in whatever order things happen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .schedule import Schedule

STREAMS = st.fixed_dictionaries(
    {
        "lanes_per_actor": st.lists(st.integers(1, 3), min_size=1, max_size=3),
        "batch": st.integers(1, 4),
        "max_lag": st.integers(0, 4),
        "late": st.sampled_from(["wait", "drop"]),
    }
)


def drive(stream, moves):
    """Whatever order the numbers choose; each names a move and whom it concerns."""
    schedule = Schedule(**stream)
    actor_of = [actor for actor, count in enumerate(stream["lanes_per_actor"]) for _ in range(count)]
    try:
        for move, who in moves:
            lane = who % len(actor_of)
            if move == "receive":
                schedule.receive(actor_of[lane])
            elif move == "start":
                schedule.start(lane)
            elif move == "finish" or (move == "work" and lane in schedule.started):
                schedule.finish(lane, actor_of)
            elif move == "work":
                schedule.receive(actor_of[lane])
                schedule.start(lane)
            else:
                schedule.update()
        _nothing_is_lost_or_stuck(schedule, actor_of)
    finally:
        schedule.close()
    return schedule


def _nothing_is_lost_or_stuck(schedule, actor_of):
    consumer = schedule.consumer
    for _ in range(2 * schedule.max_lag + 4):
        schedule.fill_everything(actor_of)
        dropped = consumer.dropped
        if not schedule.update():
            assert consumer.dropped > dropped, "every credit is filled, and yet the trainer waits"
        for actor in range(len(schedule.producers)):
            schedule.receive(actor)
        assert consumer.waiting + len(schedule.under_way()) == schedule.slots
        assert len(schedule.posted) == consumer.waiting + consumer.dropped
    assert len(set(schedule.taken)) == len(schedule.taken)


def random_moves(seed, count=800):
    random = np.random.default_rng(seed)
    kinds = ["receive", "start", "finish", "work", "update"]
    # Lanes of very different speed: up to a thousand to one.
    speeds = 10 ** random.uniform(0, 3, 9)
    lanes = random.choice(9, count, p=speeds / speeds.sum())
    return [(kinds[kind], int(lane)) for kind, lane in zip(random.integers(0, 5, count), lanes, strict=True)]


@settings(max_examples=400, deadline=None)
@given(STREAMS, st.integers(0, 2**32 - 1))
def test_the_law_of_lag_holds_and_credits_are_conserved_in_any_order(stream, seed):
    drive(stream, random_moves(seed))


@pytest.mark.parametrize("late", ["wait", "drop"])
@pytest.mark.parametrize("max_lag", [0, 1, 2, 4])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_law_of_lag_holds_when_lanes_differ_in_speed(batch, max_lag, late):
    stream = {"lanes_per_actor": [2, 1, 2], "batch": batch, "max_lag": max_lag, "late": late}
    for seed in range(4):
        schedule = drive(stream, random_moves(seed))
        assert late == "drop" or schedule.consumer.dropped == 0


def test_two_slow_lanes_that_are_due_together_are_both_learned_from_in_time():
    # Three lanes and one segment per update: while two lanes sleep, the third may not use up the updates of both.
    schedule = Schedule([1, 1, 1], batch=1, max_lag=2)
    actor_of = [0, 1, 2]
    for actor in actor_of:
        schedule.receive(actor)
        schedule.start(actor)
    for _ in range(3):
        schedule.finish(2, actor_of)
        schedule.update()
        schedule.receive(2)
        schedule.start(2)
    for lane in (0, 1):
        schedule.finish(lane, actor_of)
    for _ in range(3):
        schedule.update()
    schedule.close()
    assert {ticket for ticket, _ in schedule.taken} >= {0, 1}


@pytest.mark.parametrize(("lanes_per_actor", "batch"), [([1, 1], 2), ([2, 2], 4), ([3], 2), ([1, 2], 5), ([4], 1)])
def test_a_synchronous_run_hands_out_lanes_and_takes_them_in_one_order(lanes_per_actor, batch):
    stream = {"lanes_per_actor": lanes_per_actor, "batch": batch, "max_lag": 0}
    runs = [drive(stream, random_moves(seed)) for seed in range(3)]
    shortest = min(len(run.taken) for run in runs)
    assert shortest > 3 * batch
    assert len({tuple(run.taken[:shortest]) for run in runs}) == 1
    assert len({tuple(sorted(run.given)[:shortest]) for run in runs}) == 1
    lanes = [lane for _, lane in runs[0].taken[:shortest]]
    served = [lanes.count(lane) for lane in range(sum(lanes_per_actor))]
    assert max(served) - min(served) <= -(-batch // len(served)), "some lanes are preferred"


def test_a_segment_that_comes_too_late_is_dropped_counted_and_its_credit_granted_anew():
    schedule = Schedule([1, 1], batch=1, max_lag=1, late="drop")
    actor_of = [0, 1]
    for lane in (0, 1):
        schedule.receive(lane)
        schedule.start(lane)
    for _ in range(3):
        schedule.finish(1, actor_of)
        assert schedule.update()
        schedule.receive(1)
        schedule.start(1)
    schedule.finish(0, actor_of)
    assert schedule.consumer.dropped == 0
    assert not schedule.update()
    assert schedule.consumer.dropped == 1
    schedule.fill_everything(actor_of)
    assert schedule.update()
    assert schedule.consumer.dropped == 1
    schedule.close()


def test_the_trainer_waits_for_a_segment_that_would_come_too_late():
    schedule = Schedule([1, 1], batch=1, max_lag=1, late="wait")
    actor_of = [0, 1]
    for lane in (0, 1):
        schedule.receive(lane)
        schedule.start(lane)
    schedule.finish(1, actor_of)
    assert schedule.update()
    schedule.receive(1)
    schedule.start(1)
    schedule.finish(1, actor_of)
    assert not schedule.update()
    schedule.finish(0, actor_of)
    assert schedule.update()
    assert schedule.taken == [(1, 1), (0, 0)]
    schedule.close()
