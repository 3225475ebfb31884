"""Returns against their slow literal definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.algorithms.returns import discounted_returns, explained_variance, gae, off_policy_gae, vtrace

from . import literal
from .fakes import flags


@st.composite
def segments(draw):
    """Valid segments with every mixture of ends at any row, and columns that start with a reset row."""
    steps, columns = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    kinds = st.sampled_from([0, 0, 0, 1, 2, 3])
    ends = torch.tensor(draw(st.lists(kinds, min_size=steps * columns, max_size=steps * columns)))
    starts = torch.tensor(draw(st.lists(st.booleans(), min_size=columns, max_size=columns)))
    terminated, truncated, valid, _ = flags(ends.view(steps, columns), starts)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    reward, value, log_rho = torch.randn(3, steps, columns, generator=generator, dtype=torch.float64)
    last_value = torch.randn(columns, generator=generator, dtype=torch.float64)
    return {
        "log_rho": log_rho,
        "reward": reward * valid,
        "value": value,
        "last_value": last_value,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }


def episodes(segment, column):
    names = ("value", "last_value", "terminated", "truncated", "valid")
    return literal.episodes(*(segment[name][..., column].tolist() for name in names))


def without_rho(segment):
    return {name: x for name, x in segment.items() if name != "log_rho"}


@settings(deadline=None, max_examples=200)
@given(segments(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))
def test_gae_is_the_sum_over_each_episode(segment, gamma, lam):
    advantage, target = gae(**without_rho(segment), gamma=gamma, lam=lam)
    expected = torch.zeros_like(advantage)
    for column in range(expected.shape[1]):
        for episode in episodes(segment, column):
            reward, value = (segment[name][:, column].tolist() for name in ("reward", "value"))
            for t, x in literal.gae(episode, reward, value, gamma, lam).items():
                expected[t, column] = x
    torch.testing.assert_close(advantage, expected)
    torch.testing.assert_close(target, (expected + segment["value"]) * segment["valid"])


@settings(deadline=None, max_examples=200)
@given(
    segments(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([(1.0, 1.0), (2.0, 0.5)]), st.sampled_from([0.7, 1.0])
)
def test_vtrace_is_the_sum_over_each_episode(segment, gamma, bars, lam):
    advantage, target = vtrace(**segment, gamma=gamma, rho_bar=bars[0], c_bar=bars[1], lam=lam)
    expected = torch.zeros(2, *target.shape, dtype=torch.float64)
    for column in range(target.shape[1]):
        for episode in episodes(segment, column):
            reward, value, log_rho = (segment[name][:, column].tolist() for name in ("reward", "value", "log_rho"))
            for t, pair in literal.vtrace(episode, reward, value, log_rho, gamma, *bars, lam).items():
                expected[:, t, column] = torch.tensor(pair)
    torch.testing.assert_close(torch.stack([advantage, target]), expected)


@settings(deadline=None, max_examples=200)
@given(segments(), st.sampled_from([0.0, 0.9, 1.0]), st.sampled_from([0.0, 0.7, 1.0]))
def test_off_policy_gae_is_gae_where_nothing_is_old(segment, gamma, lam):
    segment["log_rho"] = torch.zeros_like(segment["log_rho"])
    for got, expected in zip(
        off_policy_gae(**segment, gamma=gamma, lam=lam), gae(**without_rho(segment), gamma=gamma, lam=lam), strict=True
    ):
        torch.testing.assert_close(got, expected)


@settings(deadline=None, max_examples=200)
@given(segments(), st.sampled_from([(1.0, 1.0), (2.0, 0.5)]), st.sampled_from([0.7, 1.0]))
def test_off_policy_gae_is_one_step_and_then_the_corrected_traces(segment, bars, lam):
    gamma = 0.9
    advantage, target = off_policy_gae(**segment, gamma=gamma, lam=lam, rho_bar=bars[0], c_bar=bars[1])
    _, corrected = vtrace(**segment, gamma=gamma, rho_bar=bars[0], c_bar=bars[1], lam=lam)
    torch.testing.assert_close(target, corrected)
    for column in range(target.shape[1]):
        reward, value, goal = (x[:, column].tolist() for x in (segment["reward"], segment["value"], target))
        for episode in episodes(segment, column):
            for t, after in zip(episode.rows, [*episode.rows[1:], None], strict=True):
                next_value = episode.bootstrap if after is None else value[after]
                trace = 0.0 if after is None else goal[after] - value[after]
                expected = reward[t] + gamma * next_value - value[t] + gamma * lam * trace
                assert advantage[t, column].item() == pytest.approx(expected, abs=1e-9)


@settings(deadline=None)
@given(segments(), st.sampled_from([0.7, 1.0]))
def test_vtrace_on_policy_has_the_targets_of_gae(segment, lam):
    on_policy = segment | {"log_rho": torch.zeros_like(segment["reward"])}
    _, target = vtrace(**on_policy, gamma=0.9, lam=lam)
    torch.testing.assert_close(target, gae(**without_rho(segment), gamma=0.9, lam=lam)[1])


@settings(deadline=None)
@given(segments())
def test_invalid_rows_pass_nothing_on(segment):
    valid, terminated = segment["valid"], segment["terminated"]
    spoiled = dict(segment)
    for name in ("reward", "log_rho"):
        spoiled[name] = torch.where(valid, segment[name], torch.nan)
    # The value of a reset row is that of a final observation: it counts only after a truncation.
    before = torch.cat([torch.ones_like(valid[:1]), terminated[:-1]])
    spoiled["value"] = torch.where(~valid & before, torch.nan, segment["value"])
    spoiled["last_value"] = torch.where(terminated[-1], torch.nan, segment["last_value"])
    for a, b in zip(vtrace(**segment, gamma=0.9), vtrace(**spoiled, gamma=0.9), strict=True):
        assert torch.equal(a, b)
    a, b = gae(**without_rho(segment), gamma=0.9, lam=0.9), gae(**without_rho(spoiled), gamma=0.9, lam=0.9)
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_constant_reward_under_truncation_alone_is_worth_one_over_one_minus_gamma(lam):
    gamma, steps = 0.99, 30
    ends = torch.zeros(steps, 2, dtype=torch.long)
    ends[4::5] = 2
    terminated, truncated, valid, _ = flags(ends, torch.tensor([False, True]))
    worth = torch.full((steps, 2), 1.0 / (1.0 - gamma), dtype=torch.float64)
    after = worth[0]
    rows = {"terminated": terminated, "truncated": truncated, "valid": valid, "gamma": gamma, "lam": lam}
    reward = valid.double()
    torch.testing.assert_close(gae(reward, worth, after, **rows)[1], worth * valid)
    log_rho = torch.randn(steps, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(vtrace(log_rho, reward, worth, after, **rows)[1], worth * valid)


@settings(deadline=None)
@given(segments(), st.integers(1, 8))
def test_discounted_returns_go_on_across_batches(segment, cut):
    reward, valid, ended = segment["reward"], segment["valid"], segment["terminated"] | segment["truncated"]
    carry = torch.full_like(reward[0], 2.0)
    expected = torch.zeros_like(reward)
    for column in range(reward.shape[1]):
        total = 2.0
        for t in range(len(reward)):
            total = 0.9 * total + reward[t, column].item()
            expected[t, column] = total
            total = 0.0 if ended[t, column] else total
    whole, after = discounted_returns(reward, ended, valid, 0.9, carry)
    torch.testing.assert_close(whole, expected)
    if cut < len(reward):
        one, middle = discounted_returns(reward[:cut], ended[:cut], valid[:cut], 0.9, carry)
        two, end = discounted_returns(reward[cut:], ended[cut:], valid[cut:], 0.9, middle)
        assert torch.equal(torch.cat([one, two]), whole)
        assert torch.equal(end, after)


def test_explained_variance():
    valid = torch.tensor([[True], [True], [True], [False]])
    target = torch.tensor([[0.0], [1.0], [2.0], [torch.nan]])
    assert explained_variance(target, target, valid) == 1.0
    assert explained_variance(torch.zeros(4, 1), target, valid) == 0.0
    assert explained_variance(target, torch.ones(4, 1), valid) == 0.0


def test_wrong_shapes_are_refused():
    flag = torch.zeros(3, 2, dtype=torch.bool)
    x, last = torch.zeros(3, 2), torch.zeros(2)
    with pytest.raises(ValueError, match=r"value has shape \(3, 1\)"):
        gae(x, x[:, :1], last, flag, flag, flag, 0.9, 0.9)
    with pytest.raises(ValueError, match="one entry per column"):
        gae(x, x, last[None], flag, flag, flag, 0.9, 0.9)
    with pytest.raises(ValueError, match="expected"):
        explained_variance(x[0], x[0], flag[0])
