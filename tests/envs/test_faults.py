"""Limits, what is said of a fault, and rows that are broken."""

import numpy as np
import pytest

from srl.envs.faults import Fault, Faults, Finite, Limits, TooManyFaults, break_rows, of_exception, seed_after
from srl.errors import UserError
from srl.tree import Spec


def test_faults_are_told_once():
    faults = Faults(Limits(max_faults=3), "Env", 2)
    faults.add(0, "raised", "a")
    faults.add(1, "nan", "b")
    assert faults.drain() == [Fault(0, "raised", "a"), Fault(1, "nan", "b")]
    assert faults.drain() == []


def test_one_too_many_is_the_end_and_says_what_the_last_one_was():
    faults = Faults(Limits(max_faults=2, window_seconds=50), "Env", 4)
    for _ in range(2):
        faults.add(0, "raised", "first")
    with pytest.raises(
        TooManyFaults, match=r"Env: 3 faults within 50 s, at most 2 .*environment 3 of 4: died: SIGABRT"
    ):
        faults.add(3, "died", "SIGABRT")


def test_faults_count_only_for_a_while():
    faults = Faults(Limits(max_faults=1, window_seconds=1e-9), "Env", 1)
    for _ in range(100):
        faults.add(0, "raised", "now and then")
    assert len(faults.drain()) == 100


@pytest.mark.parametrize(
    "wrong", [{"limit_seconds": 0}, {"reset_seconds": -1.0}, {"window_seconds": float("nan")}, {"max_faults": -1}]
)
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Limits(**wrong)


def test_an_exception_is_told_with_its_traceback_and_a_wrong_shape_in_a_line():
    def breaks(text):
        raise ValueError(text)

    with pytest.raises(ValueError, match="x") as caught:
        breaks("x" * 20_000)
    kind, text = of_exception(caught.value)
    assert (kind, len(text)) == ("raised", 8000)
    with pytest.raises(ValueError, match="short") as caught:
        breaks("short")
    caught.value.add_note("where it was")
    *stack, note, last = of_exception(caught.value)[1].splitlines()
    assert "test_faults.py" in "".join(stack)
    assert (note, last) == ("where it was", "ValueError: short")
    noted = UserError("observation has shape (2,)")
    noted.add_note("in environment 1")
    assert of_exception(noted) == ("shape", "observation has shape (2,) in environment 1")


def test_seeds_of_what_was_built_anew_are_reproducible_and_distinct():
    made = [seed_after(seed, row, life) for seed in range(5) for row in range(5) for life in range(5)]
    assert made == [seed_after(seed, row, life) for seed in range(5) for row in range(5) for life in range(5)]
    assert len(set(made)) == 125
    assert all(0 <= one < 2**31 for one in made)


def test_rows_that_are_not_finite_are_found():
    finite = Finite({"a": Spec((2,), "float32"), "b": {"n": Spec((), "int64"), "x": Spec((), "float32")}})
    obs = {"a": np.zeros((4, 2), np.float32), "b": {"n": np.zeros(4, int), "x": np.zeros(4, np.float32)}}
    reward = np.zeros(4, np.float32)
    assert finite.wrong({"obs": obs, "reward": reward}) == {}
    obs["a"][1, 1], obs["b"]["x"][2], reward[3] = np.nan, -np.inf, np.inf
    wrong = finite.wrong({"obs": obs, "reward": reward})
    assert sorted(wrong) == [1, 2, 3]
    assert "observation a" in wrong[1]
    assert "observation b/x is -inf" in wrong[2]
    assert "reward is inf" in wrong[3]


def test_broken_rows_are_truncated_and_show_the_last_good_observation():
    last = {"a": np.arange(3.0)}
    out = {"obs": {"a": np.full(3, np.nan)}, "reward": np.full(3, 7.0), "mask": np.zeros((3, 2), bool)}
    out |= {name: np.zeros(3, bool) for name in ("truncated", "game_over", "broken")}
    out |= {"terminated": np.ones(3, bool), "score": np.full(3, 7.0)}
    break_rows(out, [], last)
    assert np.isnan(out["obs"]["a"]).all()
    break_rows(out, [0, 2], last)
    np.testing.assert_array_equal(out["obs"]["a"], [0, np.nan, 2])
    np.testing.assert_array_equal(out["mask"], [[1, 1], [0, 0], [1, 1]])
    for name, expected in {"reward": 0, "score": 0, "terminated": 0}.items():
        np.testing.assert_array_equal(out[name][[0, 2]], expected)
        assert out[name][1]
    for name in ("truncated", "game_over", "broken"):
        np.testing.assert_array_equal(out[name], [True, False, True])
