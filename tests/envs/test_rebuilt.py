"""Environments that are stepped together survive their faults: the row's, where one row can begin anew, or all."""

from functools import partial
from itertools import pairwise

import numpy as np
import psutil
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from srl.envs.base import EnvBatch, make
from srl.envs.envpool import source
from srl.envs.fake import Counting, NativeVector, WritesInPlace
from srl.envs.fake_envpool import Pool, PoolPackage
from srl.envs.fake_faults import FaultyCartPole
from srl.envs.faults import Limits, TooManyFaults, Unusable
from srl.envs.kept import put_back, state_of, why_not
from srl.envs.state import from_bytes, to_bytes
from srl.errors import UserError
from srl.tree import leaves

from .arrays import arrays

SIZE = 3
MANY = Limits(max_faults=10_000)
SAID = {"raises": "step 4 was told to raise", "nans": "not finite", "shapes": "has shape", "pays": "the reward is nan"}
KIND = {"raises": "raised", "nans": "nan", "shapes": "shape", "pays": "nan"}


class Faults:
    """Lets the steps of these numbers go wrong, counted over all lives."""

    def __init__(self, kind, *at):
        self.kind, self.at, self.steps, self.closed = kind, at, 0, 0

    def next(self):
        self.steps += 1
        return self.kind if self.steps in self.at else ""


class Vector(NativeVector):
    def __init__(self, faults, num_envs, **kwargs):
        super().__init__(num_envs, **kwargs)
        self.faults = faults

    def step(self, actions):
        obs, reward, *rest = super().step(actions)
        kind = self.faults.next()
        if kind == "raises":
            raise RuntimeError(f"step {self.faults.steps} was told to raise")
        if kind == "nans":
            obs[1] = np.nan
        if kind == "pays":
            reward[1] = np.nan
        return obs[:, :1] if kind == "shapes" else obs, reward, *rest

    def close(self, **how):
        self.faults.closed += 1
        super().close(**how)


def vector(faults, **kwargs):
    return lambda num_envs: Vector(faults, num_envs, **kwargs)


def written(batch):
    return arrays(batch) | {"broken": np.ones(batch.size, bool)}


def play(batch, steps, seed=5):
    """All that a batch writes, in arrays that are never clean."""
    rng, rows, out = np.random.default_rng(0), [], written(batch)
    batch.reset(seed, out)
    for _ in range(steps):
        out = written(batch)
        batch.step(rng.integers(0, 2, batch.size), out)
        rows.append(out)
    return rows


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("PongNoFrameskip-v4", {}),
        (NativeVector, {"mode": "SameStep", "lengths": (3, 2)}),
        (NativeVector, {"mode": "Disabled", "lengths": (3, 1, 2)}),
        (WritesInPlace, {"lengths": (3, 2)}),
        (WritesInPlace, {"lengths": (3, 2), "buffers_move": True}),
        (source("Lives-v5", PoolPackage()), {}),
    ],
)
def test_without_faults_nothing_changes(env, kwargs):
    batch, plain = make(env, SIZE, kwargs, limits=Limits()), make(env, SIZE, kwargs)
    assert isinstance(batch, EnvBatch)
    for got, expected in zip(play(batch, 30), play(plain, 30), strict=True):
        assert not got.pop("broken").any()
        expected.pop("broken")
        for (path, one), (_, other) in zip(leaves(got), leaves(expected), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(path))
    assert batch.faults() == []
    batch.close()
    plain.close()


@pytest.mark.parametrize("kind", KIND)
def test_a_fault_costs_the_batch_where_rows_cannot_begin_one_by_one(kind):
    faults = Faults(kind, 4)
    batch = make(vector(faults, lengths=(5,)), SIZE, limits=MANY)
    rows = play(batch, 12)
    bad, begun = rows[3], rows[4]
    assert bad["broken"].all()
    assert bad["truncated"].all()
    assert not bad["terminated"].any()
    np.testing.assert_array_equal(bad["reward"], 0)
    np.testing.assert_array_equal(bad["obs"], rows[2]["obs"])
    # Then a reset row, and the episodes of another batch from their beginning.
    for t, row in enumerate(rows[4:]):
        assert not row["broken"].any()
        np.testing.assert_array_equal(row["obs"], [[t // 6, t % 6]] * SIZE)
        assert row["terminated"].all() == (t % 6 == 5)
    assert not (begun["terminated"] | begun["truncated"] | (begun["reward"] != 0)).any()
    (fault,) = batch.faults()
    assert (fault.row, fault.kind) == (None, KIND[kind])
    assert SAID[kind] in str(fault)
    assert str(fault).startswith(f"all environments {KIND[kind]}: ")
    assert faults.closed == 1


@pytest.mark.parametrize("kind", ["nans", "pays"])
def test_what_is_not_finite_costs_its_row_where_rows_can_begin_one_by_one(kind):
    batch = make(vector(Faults(kind, 3), mode="Disabled", lengths=(5,)), SIZE, limits=MANY)
    rows = play(batch, 10)
    plain = play(make(NativeVector, SIZE, {"mode": "Disabled", "lengths": (5,)}), 10)
    for t, (row, other) in enumerate(zip(rows, plain, strict=True)):
        np.testing.assert_array_equal(row["broken"], [False, t == 2, False])
        for name in ("obs", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(row[name][[0, 2]], other[name][[0, 2]])
    assert [row["truncated"][1] for row in rows] == [t == 2 for t in range(10)]
    assert [row["terminated"][1] for row in rows] == [t == 8 for t in range(10)]
    assert [row["obs"][1].tolist() for row in rows[1:5]] == [[0, 2], [0, 2], [1, 0], [1, 1]]
    assert rows[3]["reward"][1] == 0
    assert [(fault.row, fault.kind) for fault in batch.faults()] == [(1, "nan")]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_of_single_environments_that_give_nan(mode):
    """Beside ends of episodes, and in every mode: no row mixes two episodes, and what is counted is what happened."""

    def build(num_envs):
        envs = [partial(FaultyCartPole, nans=0.05) for _ in range(num_envs)]
        return SyncVectorEnv(envs, autoreset_mode=mode)

    batch = make(build, SIZE, limits=MANY)
    rows = play(batch, 500)
    for before, row in pairwise(rows):
        assert np.isfinite(row["obs"]).all()
        # In SAME_STEP mode the row after an end may give nan again.
        over = (before["terminated"] | before["truncated"]) & ~row["broken"]
        # What begins is near the middle; one step moves a cart by less than what it takes to leave.
        assert (np.abs(row["obs"][over][:, [0, 2]]) < 0.1).all()
        np.testing.assert_array_equal(row["truncated"], row["broken"])
    faults = batch.faults()
    assert {fault.kind for fault in faults} == {"nan"}
    assert len(faults) == sum(row["broken"].sum() for row in rows) > 50
    assert sum(row["terminated"].sum() for row in rows) > 10


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # Gymnasium's own words
@pytest.mark.parametrize(("kind", "said"), [("raises", "told to raise"), ("exits", "EOFError")])
def test_processes_of_gymnasium_that_raise_or_die(kind, said):
    """None is waited for, and none is left."""
    before = psutil.Process().children(recursive=True)
    batch = make(lambda num_envs: AsyncVectorEnv([partial(FaultyCartPole, **{kind: 0.05})] * num_envs), 2, limits=MANY)
    rows = play(batch, 60)
    faults = batch.faults()
    assert len(faults) == sum(row["broken"].all() for row in rows) > 0
    assert all(said in fault.text for fault in faults)
    batch.close()
    _, alive = psutil.wait_procs(set(psutil.Process().children(recursive=True)) - set(before), timeout=5)
    assert not alive


def test_arrays_that_are_written_in_place():
    class Bad(WritesInPlace):
        def step(self, actions):
            super().step(actions)
            if faults.next():
                self._arrays()[0][1] = np.nan

    faults = Faults("nans", 3, 9)
    batch = make(partial(Bad, buffers_move=True), SIZE, limits=MANY)
    rows = play(batch, 12)
    assert [row["broken"].all() for row in rows] == [t in (2, 9) for t in range(12)]
    assert np.isfinite([row["obs"] for row in rows]).all()
    assert len(batch.faults()) == 2


def test_a_pool_is_made_anew_with_other_seeds(monkeypatch):
    made, step = [], Pool.step

    def breaks(self, actions):
        made[:] = made if self in made else [*made, self]
        if len(made) == 1 and self._age.max() == 2:
            raise RuntimeError("the pool broke")
        return step(self, actions)

    monkeypatch.setattr(Pool, "step", breaks)
    batch = make(source("Lives-v5", PoolPackage()), SIZE, limits=MANY)
    rows = play(batch, 6)
    broken = [row["broken"].all() for row in rows]
    assert broken.count(True) == 1
    bad = rows[broken.index(True)]
    assert bad["game_over"].all()
    assert not bad["score"].any()
    assert made[0].closed
    assert not (rows[-1]["obs"][:, 0] == rows[0]["obs"][:, 0]).any()
    assert "the pool broke" in batch.faults()[0].text


def test_the_end_comes_with_the_traceback_of_the_last_one():
    batch = make(vector(Faults("raises", *range(1, 50))), SIZE, limits=Limits(max_faults=5))
    with pytest.raises(
        TooManyFaults,
        match=r"(?s)6 faults .* in all 3 environments: raised: Traceback.*told to raise.*NativeVector|of 3",
    ):
        play(batch, 50)
    batch.close()
    batch.close()


def test_a_reset_or_a_building_that_fails_is_tried_again():
    left = ["", "builds", "resets", "nans", "", "builds"]
    done = []

    class Late(NativeVector):
        def __init__(self, num_envs):
            self.kind = left.pop(0)
            done.append(self.kind)
            if self.kind == "builds":
                raise RuntimeError("not now")
            super().__init__(num_envs)

        def reset(self, *, seed=None, options=None):
            obs, info = super().reset(seed=seed, options=options)
            if self.kind == "resets":
                raise RuntimeError("nor now")
            return obs + (np.nan if self.kind == "nans" else 0), info

        def step(self, actions):
            if len(done) == 1:
                raise RuntimeError("this breaks")
            return super().step(actions)

    batch = make(lambda num_envs: Late(num_envs), 2, limits=MANY)
    rows = play(batch, 3)
    assert done == ["", "builds", "resets", "nans", ""]
    assert [row["broken"].all() for row in rows] == [True, False, False]
    assert [fault.kind for fault in batch.faults()] == ["raised", "raised", "raised", "nan"]


def test_what_contradicts_itself_ends_the_run_at_once():
    batch = make(NativeVector, 2, {"mode": "SameStep", "lengths": (3,), "final_obs": False}, limits=MANY)
    with pytest.raises(Unusable, match=r"info\['final_obs'\]"):
        play(batch, 4)


def test_other_spaces_than_before_are_refused():
    made = []

    class Grows(NativeVector):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            if made:
                self.single_observation_space = FaultyCartPole().observation_space
            made.append(self)

        def step(self, actions):
            raise RuntimeError("this breaks")

    with pytest.raises(UserError, match="built anew, it has other spaces"):
        play(make(Grows, 2, limits=MANY), 1)


def test_it_goes_on_from_its_state():
    """In the middle of episodes, right after a fault of all, and while a row is to begin anew."""
    nan = partial(FaultyCartPole, nans=0.2)
    for build in ("CartPole-v1", lambda num_envs: SyncVectorEnv([nan] * num_envs)):
        batch, again = (make(build, SIZE, limits=MANY) for _ in range(2))
        out = written(batch)
        batch.reset(1, out)
        for t, action in enumerate(np.random.default_rng(1).integers(0, 2, (60, SIZE))):
            batch.step(action, out)
            if t % 7 == 0:
                again.reset(2, written(again))
                put_back(again, from_bytes(to_bytes(state_of(batch))))
            else:
                other = written(again)
                again.step(action, other)
                for name, leaf in out.items():
                    np.testing.assert_array_equal(leaf, other[name], err_msg=name)
        assert why_not(batch) is None


def test_those_that_cannot_say_how_they_stand_are_named():
    pong = make("PongNoFrameskip-v4", 1, limits=Limits())
    assert state_of(pong) is None
    assert "Atari" in why_not(pong)
    pong.close()
    assert why_not(make(Counting, 1, limits=Limits())) is None
