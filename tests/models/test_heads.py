"""Heads: every action tree, masks, bounds, gradients."""

import numpy as np
import pytest
import torch
from torch import distributions as reference

from srl.errors import UserError
from srl.models.config import Gaussian
from srl.models.heads import ActionHead, Bounded
from srl.tree import Spec, leaves

ROWS, FEATURES = 64, 7


def head_of(spec, mask_spec=None, gain=1.0, **gaussian):
    return ActionHead(FEATURES, spec, mask_spec, Gaussian(**gaussian), gain)


@pytest.mark.parametrize("space", ["choice", "choices", "bits", "box", "nested"])
@pytest.mark.parametrize("gaussian", [{}, {"state_dependent_std": True}, {"squash": True}], ids=str)
def test_actions_have_the_shape_and_type_of_their_space(spaces, space, gaussian):
    spec = getattr(spaces, space)
    head = head_of(spec, **gaussian)
    joint = head(torch.randn(ROWS, FEATURES), None)
    for action in (joint.mode(), joint.sample(torch.rand(ROWS, head.noise))):
        for (path, leaf), (spec_path, leaf_spec) in zip(leaves(action), leaves(spec), strict=True):
            assert path == spec_path
            assert leaf.shape == (ROWS, *leaf_spec.shape)
            assert leaf.dtype == getattr(torch, leaf_spec.dtype)
        assert joint.log_prob(action).shape == joint.entropy().shape == (ROWS,)
        assert joint.log_prob(action).isfinite().all()


def test_noise_is_one_number_for_each_element(spaces):
    assert [head_of(spec).noise for spec in (spaces.choice, spaces.choices, spaces.bits, spaces.box)] == [1, 4, 3, 2]
    assert head_of(spaces.nested).noise == 10


def test_uneven_choices_equal_one_distribution_each(spaces):
    head = head_of(spaces.choices)
    features = torch.randn(ROWS, FEATURES)
    joint = head(features, None)
    action = joint.sample(torch.rand(ROWS, 4))
    parts = [reference.Categorical(logits=part) for part in head.linear(features).split(spaces.choices.n, 1)]
    expected = sum(part.log_prob(chosen) for part, chosen in zip(parts, action.flatten(1).T, strict=True))
    torch.testing.assert_close(joint.log_prob(action), expected)
    torch.testing.assert_close(joint.entropy(), sum(part.entropy() for part in parts))


def test_the_joint_is_the_product_of_its_leaves(spaces):
    joint = head_of(spaces.nested)(torch.randn(ROWS, FEATURES), None)
    action = joint.sample(torch.rand(ROWS, 10))
    flat = [leaf.reshape(ROWS, -1) for _, leaf in leaves(action)]
    expected = sum(part.log_prob(leaf) for part, leaf in zip(joint.parts, flat, strict=True))
    torch.testing.assert_close(joint.log_prob(action), expected)
    torch.testing.assert_close(joint.entropy(), sum(part.entropy() for part in joint.parts))


@pytest.mark.parametrize("space", ["choice", "choices", "nested"])
def test_masked_choices_never_happen(spaces, draw, space):
    spec = getattr(spaces, space)
    mask_spec, mask = draw.mask(spec, 2_000)
    head = head_of(spec, mask_spec, gain=5.0)
    tensors = {path: torch.from_numpy(leaf) for path, leaf in leaves(mask)}
    mask = torch.from_numpy(mask) if isinstance(mask, np.ndarray) else _nested(tensors)
    joint = head(torch.randn(2_000, FEATURES), mask)
    for action in (joint.mode(), joint.sample(torch.rand(2_000, head.noise))):
        found = dict(leaves(action))
        for path, legal in tensors.items():
            ns = dict(leaves(spec))[path].n
            for chosen, allowed in zip(found[path].reshape(2_000, -1).T, legal.split(ns, 1), strict=True):
                assert allowed[torch.arange(2_000), chosen].all()
        assert joint.log_prob(action).isfinite().all()


def _nested(flat):
    tree = {}
    for path, leaf in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return tree


def test_a_mask_that_forbids_everything_is_no_mask(spaces):
    head = head_of(spaces.choice, Spec((4,), "bool"))
    joint = head(torch.randn(1, FEATURES), torch.zeros(1, 4, dtype=torch.bool))
    torch.testing.assert_close(joint.parts[0].log_probs.exp().flatten(), torch.full((4,), 0.25))


def test_masked_gradients_are_finite_and_leave_forbidden_logits_alone(spaces):
    head = head_of(spaces.choice, Spec((4,), "bool"))
    joint = head(torch.randn(ROWS, FEATURES), torch.tensor([True, False, True, False]).expand(ROWS, 4))
    (joint.log_prob(torch.zeros(ROWS, dtype=torch.int64)) + joint.entropy()).sum().backward()
    assert head.linear.weight.grad.isfinite().all()
    assert head.linear.bias.grad.ne(0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("gaussian", [{}, {"state_dependent_std": True}, {"squash": True}], ids=str)
def test_gradients_reach_every_parameter(spaces, gaussian):
    head = head_of(spaces.nested, **gaussian)
    joint = head(torch.randn(ROWS, FEATURES), None)
    (joint.log_prob(joint.sample(torch.rand(ROWS, head.noise))) + joint.entropy()).sum().backward()
    assert all(parameter.grad.ne(0).any() for parameter in head.parameters())


def test_spread_starts_where_asked_and_stays_bounded(spaces):
    for state_dependent in (False, True):
        settings = {"state_dependent_std": state_dependent, "init_log_std": -1.0, "max_log_std": 0.0}
        head = head_of(spaces.box, gain=0.0, **settings)
        features = torch.randn(ROWS, FEATURES)
        assert (head(features, None).parts[0].log_std == -1.0).all()
        with torch.no_grad():
            (head.linear.bias if state_dependent else head.parts[0].log_std).fill_(9.0)
        assert (head(features, None).parts[0].log_std == 0.0).all()


def test_bounded_lets_gradients_lead_back_inside():
    x = torch.tensor([-3.0, -3.0, 0.0, 0.0, 3.0, 3.0], requires_grad=True)
    grad = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    bounded = Bounded.apply(x, -1.0, 1.0)
    assert bounded.tolist() == [-1, -1, 0, 0, 1, 1]
    bounded.backward(grad)
    assert x.grad.tolist() == [0, -1, 1, -1, 1, 0]


def test_unusable_action_spaces_are_named(spaces):
    with pytest.raises(UserError, match="finite bounds low < high, which the action 'steer'"):
        head_of({"steer": Spec((2,), "float32")}, squash=True)
    with pytest.raises(UserError, match="'pixels' is a box of uint8"):
        head_of({"pixels": Spec((2,), "uint8")})
    with pytest.raises(UserError, match="no elements"):
        head_of(Spec((0,), "float32"))
    with pytest.raises(UserError, match="action space is empty"):
        head_of({})
    with pytest.raises(UserError, match="has 3 entries; its action has 4 choices"):
        head_of(spaces.choice, Spec((3,), "bool"))
    with pytest.raises(UserError, match="has 2 entries; its action has no choices"):
        head_of({"a": spaces.choice, "b": spaces.box}, {"b": Spec((2,), "bool")})
