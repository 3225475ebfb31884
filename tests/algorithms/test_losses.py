"""Losses by their definitions, on numbers small enough to work out by hand."""

import math

import torch

from srl.algorithms import losses


def test_surrogate_cuts_only_what_would_gain():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert losses.clipped_surrogate(ratio, advantage, 0.25).tolist() == [-1.25, 1.5, -0.5, 0.75]


def test_dual_clip_bounds_the_loss_of_bad_actions_alone():
    ratio = torch.tensor([10.0, 10.0, 2.0])
    advantage = torch.tensor([-1.0, 1.0, -1.0])
    assert losses.clipped_surrogate(ratio, advantage, 0.25, 3.0).tolist() == [3.0, -1.25, 2.0]


def test_value_errors():
    value, target = torch.tensor([0.5, 3.0]), torch.zeros(2)
    assert losses.value_error(value, target).tolist() == [0.25, 9.0]
    assert losses.value_error(value, target, "huber").tolist() == [0.25, 5.0]
    old = torch.tensor([0.0, 2.0])
    assert losses.clipped_value_error(value, old, target, 0.25).tolist() == [0.25, 9.0]
    assert losses.clipped_value_error(torch.tensor([0.5]), old[1:], target[1:], 0.25).tolist() == [1.75**2]


def test_kl_estimate_has_the_mean_of_the_divergence():
    old, new = torch.tensor([0.2, 0.8]), torch.tensor([0.5, 0.5])
    divergence = (old * (old / new).log()).sum()
    estimate = (old * losses.kl_estimate((new / old).log())).sum()
    torch.testing.assert_close(estimate, divergence)


def test_means_leave_out_rows_that_do_not_count():
    x = torch.tensor([1.0, 3.0, math.inf], requires_grad=True)
    valid = torch.tensor([True, True, False])
    mean = losses.masked_mean(x, valid)
    mean.backward()
    assert mean == 2.0
    assert x.grad.tolist() == [0.5, 0.5, 0.0]
    assert losses.masked_mean(x[:2], None) == 2.0
    assert losses.masked_mean(x, torch.zeros(3, dtype=torch.bool)) == 0.0


def test_normalised_uses_all_valid_rows():
    x = torch.tensor([[1.0, 5.0], [3.0, 100.0]])
    valid = torch.tensor([[True, True], [True, False]])
    y = losses.normalised(x, valid)
    torch.testing.assert_close(y[valid].mean(), torch.tensor(0.0))
    torch.testing.assert_close(y[valid].std(correction=0), torch.tensor(1.0))
    assert y[1, 1] == 0.0
    assert losses.normalised(torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)).item() == 0.0


def test_outside():
    assert losses.outside(torch.tensor([0.7, 1.1, 1.3]), 0.2).tolist() == [1.0, 0.0, 1.0]
