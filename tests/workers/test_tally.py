"""What ranks count of their parts is together what one trainer counts of the whole batch."""

import numpy as np

from srl.streams.base import Slot
from srl.workers.tally import EPISODES_IN_MEAN, Lags, row_of, tally_of

T, B = 40, 6


def slot(at: int, ends: float = 0.1) -> Slot:
    random = np.random.default_rng(at)
    over = random.random((T, B)) < ends
    broken = random.random((T, B)) < 0.2
    segment = {
        "version": np.full(T, 10 - at % 4),
        "valid": random.random((T, B)) < 0.9,
        "terminated": over & (random.random((T, B)) < 0.5),
        "reward": np.ones((T, B), np.float32),
        "episode_return": random.normal(size=(T, B)).astype(np.float32),
        "episode_length": np.where(broken, 0, random.integers(1, 99, (T, B))).astype(np.int32),
    }
    segment["truncated"] = over & ~segment["terminated"]
    return Slot(at, at, at, 0, segment)


def rows(*parts: list[Slot]) -> np.ndarray:
    return np.stack([row_of(part, 10, asked=False, dropped=at) for at, part in enumerate(parts)])


def test_parts_add_up_to_the_whole() -> None:
    for ends in (0.0, 0.02, 0.6):
        slots = [slot(at, ends) for at in range(6)]
        one, three = tally_of(rows(slots)), tally_of(rows(slots[:2], slots[2:4], slots[4:]))
        for name in ("ready", "asked", "steps", "segments", "lag_sum", "lag_max", "episodes"):
            assert getattr(three, name) == getattr(one, name), name
        assert three.dropped == 0 + 1 + 2
        for name in ("returns", "lengths"):
            assert getattr(three, name)[-EPISODES_IN_MEAN:] == getattr(one, name)[-EPISODES_IN_MEAN:], name
        assert len(one.returns) == min(one.episodes, EPISODES_IN_MEAN)
        assert (one.episodes > EPISODES_IN_MEAN) == (ends == 0.6)


def test_what_is_counted_is_what_is_there() -> None:
    slots = [slot(1), slot(2)]
    tally = tally_of(rows(slots))
    segments = [each.segment for each in slots]
    over = [(s["terminated"] | s["truncated"]) & (s["episode_length"] > 0) for s in segments]
    assert tally.steps == sum(s["valid"].sum() for s in segments)
    assert tally.returns == [x for s, o in zip(segments, over, strict=True) for x in s["episode_return"][o].tolist()]
    assert tally.lengths == [x for s, o in zip(segments, over, strict=True) for x in s["episode_length"][o].tolist()]
    assert (tally.lag_sum, tally.lag_max, tally.segments) == (1 + 2, 2, 2)
    lags = Lags()
    assert (lags.mean, lags.max) == (0.0, 0)
    lags.add(tally)
    assert (lags.mean, lags.max) == (1.5, 2)


def test_all_must_be_ready_and_any_may_ask() -> None:
    late = row_of(None, 10, asked=True, dropped=0)
    tally = tally_of(np.stack([rows([slot(1)])[0], late]))
    assert (tally.ready, tally.asked) == (False, True)
    tally = tally_of(rows([slot(1)], [slot(2)]))
    assert (tally.ready, tally.asked) == (True, False)
