"""Distributions: against torch.distributions, quadrature and counting."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import distributions as reference

from srl.models.distributions import Bernoulli, Categorical, Normal, Squash, SquashedNormal

ROWS = 6


def uniforms(n: int) -> torch.Tensor:
    """Evenly spaced noise: counts equal probabilities to 1/n."""
    return (torch.arange(n) + 0.5).view(-1, 1) / n


def test_categorical_equals_torch():
    logits = torch.randn(ROWS, 3, 4) * 3
    ours, theirs = Categorical(logits), reference.Categorical(logits=logits)
    action = theirs.sample()
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(1))
    assert torch.equal(ours.mode(), logits.argmax(-1))


def test_categorical_samples_by_its_probabilities():
    logits = torch.tensor([0.3, -2.0, 1.0, 0.0])
    drawn = Categorical(logits.expand(10_000, 1, 4)).sample(uniforms(10_000))
    torch.testing.assert_close(drawn.flatten().bincount() / 10_000, logits.softmax(0), atol=2e-4, rtol=0)


@given(
    st.lists(st.tuples(st.floats(-30, 30, width=32), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([0.0, 2.0**-149, 2.0**-24, 0.5, 1 - 2.0**-24, 1.0]) | st.floats(0, 1, width=32),
)
@settings(deadline=None, max_examples=200)
def test_forbidden_choices_are_never_sampled(choices, noise):
    logits = torch.tensor([logit for logit, _ in choices])
    legal = torch.tensor([legal for _, legal in choices])
    legal[0] |= not legal.any()
    masked = logits.masked_fill(~legal, torch.finfo(torch.float32).min).view(1, 1, -1)
    distribution = Categorical(masked)
    assert legal[distribution.sample(torch.tensor([[noise]]))].all()
    assert legal[distribution.mode()].all()
    assert not distribution.log_probs.exp()[0, 0, ~legal].any()
    alone = reference.Categorical(logits=logits[legal])
    torch.testing.assert_close(distribution.entropy()[0], alone.entropy(), atol=1e-5, rtol=1e-5)


def test_bernoulli_equals_torch():
    logits = torch.randn(ROWS, 3) * 5
    ours, theirs = Bernoulli(logits), reference.Bernoulli(logits=logits)
    action = theirs.sample()
    torch.testing.assert_close(ours.log_prob(action.to(torch.int8)), theirs.log_prob(action).sum(1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(1), atol=1e-6, rtol=1e-5)
    drawn = Bernoulli(torch.full((10_000, 1), 0.7)).sample(uniforms(10_000))
    assert drawn.float().mean().item() == pytest.approx(torch.tensor(0.7).sigmoid().item(), abs=2e-4)


@pytest.mark.parametrize("rows", [(), (ROWS,)], ids=["one spread", "spread by row"])
def test_normal_equals_torch(rows):
    mean, log_std = torch.randn(ROWS, 3), torch.randn(*rows, 3)
    ours, theirs = Normal(mean, log_std), reference.Normal(mean, log_std.exp().expand(ROWS, 3))
    action = theirs.sample()
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(1))
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(1))
    assert torch.equal(ours.mode(), mean)
    noise = torch.rand(ROWS, 3).clamp(0.01, 0.99)
    torch.testing.assert_close(ours.sample(noise), theirs.icdf(noise))


def test_normal_samples_stay_finite_at_the_ends_of_the_noise():
    drawn = Normal(torch.zeros(2, 1), torch.zeros(1)).sample(torch.tensor([[0.0], [1.0]]))
    assert drawn.isfinite().all()
    assert -drawn[0] == pytest.approx(drawn[1], rel=1e-3)


LOW, HIGH = torch.tensor([-1.0, 0.0, 10.0]), torch.tensor([1.0, 0.5, 30.0])


def squashed(mean, log_std):
    return SquashedNormal(Normal(mean, log_std), Squash(LOW, HIGH))


def test_squashed_normal_equals_torch():
    mean, log_std = torch.randn(ROWS, 3), torch.randn(3) * 0.3
    base = reference.Normal(mean, log_std.exp().expand(ROWS, 3))
    bounds = reference.AffineTransform((LOW + HIGH) / 2, (HIGH - LOW) / 2)
    theirs = reference.TransformedDistribution(base, [reference.TanhTransform(), bounds])
    action = squashed(mean, log_std).sample(torch.rand(ROWS, 3) * 0.8 + 0.1)
    expected = theirs.log_prob(action).sum(1)
    torch.testing.assert_close(squashed(mean, log_std).log_prob(action), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("log_std", [-2.0, 0.0, 0.4])
def test_squashed_density_integrates_to_one(log_std):
    # Substituting action = squash(x) resolves the density near the bounds.
    x = torch.linspace(-7, 7, 100_001, dtype=torch.float64)
    normal = Normal(torch.full((100_001, 1), 0.4), torch.full((1,), log_std))
    distribution = SquashedNormal(normal, Squash(torch.tensor([-2.0]), torch.tensor([5.0])))
    density = distribution.log_prob(distribution.squash(x.float().view(-1, 1))).double().exp()
    slope = 3.5 * (1 - x.tanh().square())
    assert torch.trapezoid(density * slope, x).item() == pytest.approx(1, abs=3e-3)


@pytest.mark.parametrize("log_std", [-4.0, -1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.4])
def test_squashed_entropy_equals_the_integral(mean, log_std):
    z = torch.linspace(-8, 8, 100_001, dtype=torch.float64)
    x = mean + z * torch.tensor(log_std, dtype=torch.float64).exp()
    log_slope = 2 * (math.log(2) - x - torch.nn.functional.softplus(-2 * x)) + math.log(3.5)
    density = reference.Normal(0.0, 1.0).log_prob(z).exp()
    expected = 0.5 + 0.5 * math.log(2 * math.pi) + log_std + torch.trapezoid(log_slope * density, z).item()
    normal = Normal(torch.tensor([[mean]]), torch.tensor([log_std]))
    entropy = SquashedNormal(normal, Squash(torch.tensor([-2.0]), torch.tensor([5.0]))).entropy()
    assert entropy.item() == pytest.approx(expected, abs=1e-2 if log_std > 1 else 1e-4)


def test_squashed_actions_stay_within_bounds_and_finite():
    distribution = squashed(torch.tensor([[-100.0] * 3, [100.0] * 3]), torch.zeros(3))
    for action in (distribution.mode(), distribution.sample(torch.tensor([[0.0] * 3, [1.0] * 3]))):
        assert ((action >= LOW) & (action <= HIGH)).all()
        assert distribution.log_prob(action).isfinite().all()
    assert distribution.entropy().isfinite().all()
