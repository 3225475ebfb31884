"""In this process a fault of an environment costs its own row, and nothing else changes."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from gymnasium import make

from srl.envs.base import EnvBatch
from srl.envs.fake import Counting, Masked, Nested
from srl.envs.fake_faults import FaultyCartPole
from srl.envs.faults import Limits, TooManyFaults
from srl.envs.guarded import Guarded
from srl.envs.gym import GymBatch
from srl.envs.kept import put_back, state_of
from srl.envs.state import from_bytes, to_bytes
from srl.errors import UserError
from srl.tree import leaves

from .arrays import arrays

SIZE = 4
MANY = Limits(max_faults=10_000)
KIND = {"raises": "raised", "resets": "raised", "nans": "nan", "shapes": "shape"}


def play(batch, steps, seed=5):
    """All that a batch writes, and what went wrong."""
    rng, rows = np.random.default_rng(0), []
    out = arrays(batch) | {"broken": np.ones(batch.size, bool)}
    batch.reset(seed, out)
    for _ in range(steps):
        if batch.mask:
            action = np.array([rng.choice(np.flatnonzero(row)) for row in out["mask"]])
        else:
            action = rng.integers(0, 2, batch.size)
        out = arrays(batch) | {"broken": np.ones(batch.size, bool)}
        batch.step(action, out)
        rows.append(out)
    return rows


@pytest.mark.parametrize("env", [FaultyCartPole, partial(Counting, lengths=(3, 1, 2)), Masked])
def test_without_faults_it_is_a_gym_batch(env):
    batch = Guarded(env, SIZE, "Env")
    assert isinstance(batch, EnvBatch)
    for got, expected in zip(play(batch, 60), play(GymBatch(env, SIZE, "Env"), 60), strict=True):
        assert not got.pop("broken").any()
        expected.pop("broken")
        for (path, one), (_, other) in zip(leaves(got), leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(path))
    assert batch.faults() == []


def test_every_kind_of_leaf():
    batch = Guarded(Nested, 2, "Env")
    out, action = arrays(batch), arrays(batch)["obs"]
    action = {name: leaf for name, leaf in action.items() if name != "image"}
    action["arm"] = np.zeros((2, 3), np.float32)
    batch.reset(0, out)
    for _ in range(9):
        batch.step(action, out)
    assert batch.faults() == []


@pytest.mark.parametrize("kind", ["raises", "nans", "shapes"])
def test_a_fault_costs_its_own_row(kind):
    """Row 1 fails in its first step after each reset; the others go on as if it were not there."""
    made = []

    def build():
        made.append(FaultyCartPole(**({kind: 1.0} if len(made) == 1 or len(made) >= SIZE else {})))
        return made[-1]

    batch = Guarded(build, SIZE, "Env", MANY)
    rows = play(batch, 40)
    expected = play(GymBatch(FaultyCartPole, SIZE, "Env"), 40)
    others = [0, 2, 3]
    for t, (got, told) in enumerate(zip(rows, expected, strict=True)):
        for name in ("obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(got[name][others], told[name][others])
        fails = t % 2 == 0
        assert (got["truncated"][1], got["broken"][1], got["terminated"][1]) == (fails, fails, False)
        assert got["reward"][1] == 0
        if fails and t:
            np.testing.assert_array_equal(got["obs"][1], rows[t - 1]["obs"][1])
        assert not got["broken"][others].any()
    faults = batch.faults()
    assert Counter((fault.row, fault.kind) for fault in faults) == {(1, KIND[kind]): 20}
    said = {"raises": "told to raise", "nans": "not finite", "shapes": "has shape (2,)"}[kind]
    assert all(said in fault.text for fault in faults)


def test_what_is_counted_is_what_was_injected(tmp_path):
    log = tmp_path / "log"
    build = partial(FaultyCartPole, log=str(log), resets=0.1, raises=0.02, nans=0.02, shapes=0.02)
    batch = Guarded(build, SIZE, "Env", MANY)
    rows = play(batch, 1500)
    injected = Counter(KIND[line] for line in Path(log).read_text().split())
    faults = batch.faults()
    assert Counter(fault.kind for fault in faults) == injected
    assert injected.total() > 200
    broken = np.stack([row["broken"] for row in rows])
    assert broken.sum() >= sum(fault.text.count("step") > 0 for fault in faults) > 0
    assert np.isfinite(np.stack([row["obs"] for row in rows])).all()
    assert any(row["terminated"].any() for row in rows)


def test_a_run_with_faults_is_reproducible():
    batches = [Guarded(partial(FaultyCartPole, raises=0.05, nans=0.05), SIZE, "Env", MANY) for _ in range(2)]
    for one, other in zip(*(play(batch, 200) for batch in batches), strict=True):
        np.testing.assert_array_equal(one["obs"], other["obs"])


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # as an error it crashes the import of Box2D
def test_it_goes_on_from_its_state():
    """In the middle of episodes, after ends and after faults."""
    build = partial(FaultyCartPole, raises=0.03, nans=0.03)
    batch, again = Guarded(build, SIZE, "Env", MANY), Guarded(build, SIZE, "Env", MANY)
    play(batch, 100)
    play(again, 1)
    put_back(again, from_bytes(to_bytes(state_of(batch))))
    for action in np.random.default_rng(1).integers(0, 2, (100, SIZE)):
        outs = [arrays(batch) | {"broken": np.ones(SIZE, bool)} for _ in range(2)]
        for one, out in zip((batch, again), outs, strict=True):
            one.step(action, out)
        for name, leaf in outs[0].items():
            np.testing.assert_array_equal(leaf, outs[1][name])
    assert state_of(again) is not None
    assert state_of(Guarded(partial(make, "LunarLander-v3"), 1, "Env")) is None


def test_the_end_comes_with_the_traceback_of_the_last_one():
    batch = Guarded(partial(FaultyCartPole, raises=1.0), SIZE, "Env", Limits(max_faults=5))
    with pytest.raises(TooManyFaults, match=r"(?s)6 faults .*Traceback .*fake_faults.py.*told to raise"):
        play(batch, 10)


def test_a_reset_that_always_fails_is_the_end():
    with pytest.raises(TooManyFaults, match="this reset was told to raise"):
        play(Guarded(partial(FaultyCartPole, resets=1.0), SIZE, "Env", Limits(max_faults=5)), 1)


def test_what_cannot_be_built_anew_is_the_end():
    left = [FaultyCartPole(raises=1.0)]
    batch = Guarded(lambda: left.pop(), 1, "Env", Limits(max_faults=5))
    with pytest.raises(TooManyFaults, match=r"(?s)pop from empty list"):
        play(batch, 1)


def test_one_that_fails_is_closed_and_may_fail_at_that():
    closed = []

    class Closes(FaultyCartPole):
        def close(self):
            closed.append(self)
            raise RuntimeError("cannot be closed")

    batch = Guarded(partial(Closes, raises=1.0), 1, "Env", MANY)
    play(batch, 10)
    assert len(closed) == 5 == len(batch.faults())


def test_other_spaces_are_refused():
    left = [Counting, Masked]
    with pytest.raises(UserError, match="environment 1 has other spaces"):
        Guarded(lambda: left.pop(0)(), 2, "Env")
