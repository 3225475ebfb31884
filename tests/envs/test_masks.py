"""Masks of every form, and masks that cannot be used."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl.envs.base import make
from srl.envs.fake import Counting, Masked
from srl.envs.masks import Masks, mask_spec
from srl.envs.spaces import spec_of_space
from srl.errors import UserError
from srl.tree import Spec, zeros

from .arrays import arrays

PAIR = spaces.MultiDiscrete([2, 3])
NESTED = spaces.Dict({"aim": spaces.Box(0, 1, (2,)), "do": spaces.Tuple((spaces.Box(0, 1, ()), PAIR))})


def written(space, value, size=1, rows=None):
    masks = Masks(space, True, "world")
    target = zeros(masks.spec, size)
    if rows is None:
        masks.write_row(target, 0, None, {"action_mask": value})
    else:
        masks.write_rows(target, None, {"action_mask": value}, np.array(rows))
    return target


def test_the_spec_has_the_discrete_leaves_only():
    assert mask_spec(spec_of_space(spaces.Discrete(4), "x")) == Spec((4,), "bool", "binary")
    assert mask_spec(spec_of_space(NESTED, "x")) == {"do": {"1": Spec((5,), "bool", "binary")}}
    assert mask_spec(spec_of_space(spaces.Dict({"a": spaces.Box(0, 1, (2,))}), "x")) is None


@pytest.mark.parametrize(
    "value",
    [np.array([0, 1, 1, 0, 1]), [0, 1, 1, 0, 1], (np.array([0, 1]), np.array([1, 0, 1])), ([False, True], [1, 0, 1])],
)
def test_multi_discrete_masks_are_flat_or_by_element(value):
    np.testing.assert_array_equal(written(PAIR, value), [[0, 1, 1, 0, 1]])
    nested = written(NESTED, {"aim": None, "do": (None, value)})
    np.testing.assert_array_equal(nested["do"]["1"], [[0, 1, 1, 0, 1]])


def test_no_mask_for_a_leaf_allows_everything():
    assert written(NESTED, {})["do"]["1"].all()
    assert written(NESTED, {"do": (None, None)})["do"]["1"].all()


def test_masks_of_a_vector():
    flat = np.array([[0, 1, 1, 0, 1], [1, 1, 0, 0, 1]])
    by_element = (flat[:, :2], flat[:, 2:])
    objects = np.full(2, None, dtype=object)
    objects[0] = by_element[0][0], by_element[1][0]
    for value in (flat, by_element):
        np.testing.assert_array_equal(written(PAIR, value, 2, [True, True]), flat)
        np.testing.assert_array_equal(written(PAIR, value, 2, [False, True])[0], np.zeros(5))
    np.testing.assert_array_equal(written(PAIR, objects, 2, [True, False]), [flat[0], np.zeros(5)])
    nested = written(NESTED, {"do": (None, by_element)}, 2, [True, True])
    np.testing.assert_array_equal(nested["do"]["1"], flat)


def test_a_mask_of_the_wrong_size_is_named():
    with pytest.raises(UserError, match=r"world: action_mask do/1 has shape \(4,\); its action says \(5,\)"):
        written(NESTED, {"do": (None, np.ones(4))})


@pytest.mark.parametrize("value", [[0, 0, 1, 1, 1], [1, 1, 0, 0, 0]])
def test_every_element_needs_a_legal_action(value):
    masks = Masks(PAIR, True, "world")
    target = np.ones((2, 5), bool)
    masks.write_row(target, 1, None, {"action_mask": np.array(value)})
    with pytest.raises(UserError, match="of environment 1 has no legal action"):
        masks.check(target)


def test_rows_without_a_mask_are_named():
    masks = Masks(PAIR, True, "world")
    info = {"action_mask": np.ones((2, 5)), "_action_mask": np.array([True, False])}
    with pytest.raises(UserError, match=r"no info\['action_mask'\] for environments \[1\]"):
        masks.write_rows(np.zeros((2, 5), bool), None, info, np.array([True, True]))


def test_a_mask_that_comes_only_with_resets_is_refused():
    class Forgets(Counting):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": np.ones(2)}

    batch = make(Forgets, 1)
    out = arrays(batch)
    batch.reset(0, out)
    with pytest.raises(UserError, match="though the first reset had one"):
        batch.step(np.zeros(1, int), out)


def test_the_last_step_of_an_episode_needs_no_mask():
    class Tires(Masked):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, {} if terminated else info

    batch = make(Tires, 1, {"length": 1})
    out = arrays(batch)
    batch.reset(0, out)
    batch.step(np.argmax(out["mask"], axis=1), out)
    assert out["terminated"].all()
    assert out["mask"].all()


def test_an_observation_that_is_only_a_mask_is_refused():
    class Blind(gymnasium.Env):
        observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(2)})
        action_space = spaces.Discrete(2)

    with pytest.raises(UserError, match="add what the policy is to see"):
        make(Blind, 1)


def test_specs_with_and_without_masks():
    assert make(Counting, 1).mask is None
    in_obs = make(partial(Masked, where="obs"), 1)
    assert list(in_obs.obs) == ["seen"]
    assert in_obs.mask == make(partial(Masked, where="info"), 1).mask == Spec((4,), "bool", "binary")
