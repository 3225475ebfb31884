"""Spaces as specs; observations in; actions out."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from srl.envs.base import make
from srl.envs.fake import Nested
from srl.envs.spaces import Observations, action_batch, action_rows, spec_of_space
from srl.errors import UserError
from srl.tree import Spec, zeros

from .arrays import arrays

SIZE = 3
STEPS = 9


def spec(space):
    return spec_of_space(space, "x: observation")


def test_specs_of_leaves():
    assert spec(spaces.Box(-1, 2, (3,), np.float64)) == Spec((3,), "float32", low=-1.0, high=2.0)
    assert spec(spaces.Box(0, 255, (2, 2), np.uint8)) == Spec((2, 2), "uint8", low=0.0, high=255.0)
    assert spec(spaces.Box(np.array([0, -1], np.float32), np.array([1, np.inf], np.float32))) == Spec(
        (2,), "float32", low=(0.0, -1.0), high=(1.0, math.inf)
    )
    assert spec(spaces.Discrete(4, start=-2)) == Spec((), "int64", "discrete", (4,), (-2,))
    assert spec(spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]])) == Spec(
        (2, 2), "int64", "discrete", (2, 3, 4, 5), (0, 1, 2, 3)
    )
    assert spec(spaces.MultiBinary((2, 3))) == Spec((2, 3), "int8", "binary")


def test_specs_of_nested_spaces():
    space = spaces.Dict({"b": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(1))), "a": spaces.Discrete(3)})
    two, three = Spec((), "int64", "discrete", (2,), (0,)), Spec((), "int64", "discrete", (3,), (0,))
    assert spec(space) == {"b": {"0": two, "1": Spec((1,), "int8", "binary")}, "a": three}


def test_a_space_that_is_no_array_is_named():
    space = spaces.Dict({"words": spaces.Tuple((spaces.Text(5),))})
    with pytest.raises(UserError, match="x: observation words/0 is a Text space; use Box"):
        spec(space)


def bad_observations():
    box = spaces.Box(0, 1, (2,), np.float32)
    return [
        (box, np.zeros(1, np.float32), r"observation \(root\) has shape \(1,\); its space says \(2,\)"),
        (spaces.Box(0, 9, (1,), np.uint8), np.array([0.5]), "has dtype float64; its space says uint8"),
        (spaces.Dict({"a": box}), {"b": np.zeros(2)}, r"observation has no a; got \['b'\]"),
        (spaces.Dict({"a": box}), np.zeros(2), "observation has no a; got ndarray"),
        (spaces.Tuple((box, box)), (np.zeros(2, np.float32),), "observation has no 1; got tuple"),
        (spaces.Discrete(2, start=1), 0, "is outside its space: 0"),
        (spaces.Discrete(2), 0.5, "is 0.5; its space says an integer"),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 2]), r"is outside its space: \[0, 2\]"),
        (spaces.MultiDiscrete([2, 2]), np.array([0.0, 1.0]), "has dtype float64; its space says int64"),
    ]


@pytest.mark.parametrize(("space", "value", "message"), bad_observations())
def test_an_observation_outside_its_space_is_named(space, value, message):
    with pytest.raises(UserError, match=message):
        Observations(space, "world").write(zeros(spec(space), 1), 0, value)


def test_harmless_differences_of_an_observation_are_accepted():
    target = np.zeros((1, 2), np.float32)
    write = Observations(spaces.Box(0, 1, (2,), np.float32), "world").write
    for value in (np.array([0.5, 1.0]), [0.5, 1.0], np.array([0, 1])):
        write(target, 0, value)
        np.testing.assert_array_equal(target[0], value)


def expected_leaf(space, value):
    """One value as its tree leaf, from the definition."""
    if isinstance(space, spaces.Dict):
        return {key: expected_leaf(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): expected_leaf(child, value[i]) for i, child in enumerate(space.spaces)}
    start = space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None
    return np.asarray(value) if start is None else np.asarray(value) - start


def assert_same_tree(got, expected, i):
    if isinstance(expected, dict):
        assert got.keys() == expected.keys()
        for key, child in expected.items():
            assert_same_tree(got[key], child, i)
    else:
        np.testing.assert_array_equal(got[i], expected.astype(got.dtype))


def random_actions(env_spec, rng):
    """A tree of legal actions, with boxes wider than their bounds."""
    if isinstance(env_spec, dict):
        return {key: random_actions(child, rng) for key, child in env_spec.items()}
    shape = (SIZE, *env_spec.shape)
    if env_spec.kind == "box":
        return rng.normal(0, 5, shape).astype(np.float32)
    n = np.reshape(env_spec.n, env_spec.shape) if env_spec.kind == "discrete" else 2
    return rng.integers(0, n, shape).astype(env_spec.dtype)


@pytest.mark.parametrize("mode", [None, "NextStep", "SameStep", "Disabled"])
def test_every_kind_of_leaf_goes_in_and_out(mode):
    """Nested raises on an action outside its space; in SAME_STEP mode its last observation is not the shown one."""
    made = []

    def build():
        made.append(Nested(length=4 if mode != "SameStep" else STEPS + 1))
        return made[-1]

    def vector(num_envs):
        return SyncVectorEnv([build] * num_envs, autoreset_mode=mode)

    batch = make(vector if mode else build, SIZE)
    out = arrays(batch)
    batch.reset(3, out)
    rng, space = np.random.default_rng(0), made[0].observation_space
    ended = np.zeros(SIZE, bool)
    for _ in range(STEPS):
        action = random_actions(batch.action, rng)
        batch.step(action, out)
        for i, env in enumerate(made):
            obs, played = env.last
            if mode != "Disabled" or not out["terminated"][i]:
                assert_same_tree(out["obs"], expected_leaf(space, obs), i)
            if played is not None and not ended[i]:
                assert played["gear"] == action["gear"][i] - 1
                np.testing.assert_array_equal(played["arm"], np.clip(action["arm"][i].astype(np.float64), -2, 2))
                np.testing.assert_array_equal(played["slots"], action["slots"][i] + [[0, 1], [2, 3]])
                assert played["pair"][0] == action["pair"]["0"][i]
        ended = out["terminated"].copy()


def test_final_observations_of_every_kind():
    def vector(num_envs):
        return SyncVectorEnv([lambda: Nested(length=2)] * num_envs, autoreset_mode="SameStep")

    made = vector(SIZE)
    batch = make(lambda num_envs: made, SIZE)
    out = arrays(batch)
    batch.reset(0, out)
    finals = []
    inner = made.step
    made.step = lambda actions: finals.append(inner(actions)) or finals[-1]
    for _ in range(2):
        batch.step(zeros(batch.action, SIZE), out)
    assert out["terminated"].all()
    for i in range(SIZE):
        final = finals[-1][-1]["final_obs"][i]
        assert_same_tree(out["obs"], expected_leaf(made.single_observation_space, final), i)


def test_actions_of_single_leaves():
    assert action_rows(spaces.Discrete(3, start=5), np.array([0, 2])) == [5, 7]
    assert all(type(action) is int for action in action_rows(spaces.Discrete(3), np.array([0, 2])))
    box = spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64)
    rows = action_rows(box, np.array([[-3, -3], [0.5, 9]], np.float32))
    np.testing.assert_array_equal(rows, [[-1, 0], [0.5, 9]])
    assert rows[0].dtype == np.float64
    assert action_rows(spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))), {"0": np.ones(1), "1": np.zeros(1)}) == [
        (1, 0)
    ]


def test_an_environment_may_keep_its_actions():
    for space in (spaces.Discrete(3), spaces.Box(-1, 1, (), np.float32), spaces.MultiBinary(())):
        actions = np.zeros(2, spec(space).dtype)
        kept = action_batch(space, actions)
        actions[:] = 1
        np.testing.assert_array_equal(kept, [0, 0])


def test_keys_of_a_dict_need_not_be_strings():
    class Numbered(gymnasium.Env):
        observation_space = spaces.Dict({1: spaces.Discrete(2), 2: spaces.Discrete(3)})
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {1: 1, 2: 2}, {}

    batch = make(Numbered, 1)
    out = {"obs": zeros(batch.obs, 1)}
    batch.reset(0, out)
    assert out["obs"] == {"1": np.array([1]), "2": np.array([2])}
