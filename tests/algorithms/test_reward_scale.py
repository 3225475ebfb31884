"""Reward scaling over a run."""

import torch

from srl.algorithms.reward_scale import RewardScale


def run(columns=4, steps=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ended = torch.rand(steps, columns, generator=generator) < 0.1
    valid = torch.cat([torch.ones(1, columns, dtype=torch.bool), ~ended[:-1]])
    ended &= valid
    return 100 * torch.randn(steps, columns, generator=generator) * valid, ended, valid


def test_the_divisor_is_the_deviation_of_all_returns_so_far():
    reward, ended, valid = run()
    returns, total = [], torch.zeros(4)
    for r, e, v in zip(reward, ended, valid, strict=True):
        total = 0.9 * total + r
        returns.extend(total[v].tolist())
        total = total * ~e
    scale = RewardScale(0.9)
    pieces = [scale(*(x[i : i + 10] for x in (reward, ended, valid))) for i in range(0, 40, 10)]
    torch.testing.assert_close(pieces[-1], reward[30:] / torch.tensor(returns).std(correction=0))


def test_it_goes_on_from_its_state():
    rows = run()
    scale, other = RewardScale(0.9), RewardScale(0.9)
    scale(*rows)
    other.load_state_dict(scale.state_dict())
    assert torch.equal(scale(*rows), other(*rows))


def test_returns_that_do_not_vary_leave_rewards_alone():
    flag = torch.zeros(1, 3, dtype=torch.bool)
    reward = torch.full((1, 3), 5.0)
    assert torch.equal(RewardScale(0.9)(reward, flag, ~flag), reward)


def test_another_number_of_columns_starts_new_returns():
    scale = RewardScale(0.9)
    scale(*run(columns=4))
    scale(*run(columns=2))
    assert scale.carry.shape == (2,)
