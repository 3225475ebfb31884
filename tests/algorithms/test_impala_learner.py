"""The IMPALA learner on true small policies."""

import copy
import io

import pytest
import torch

from srl.algorithms import IMPALA
from srl.algorithms.chunks import last_value
from srl.algorithms.returns import vtrace
from srl.errors import UserError

from .fakes import MLPPolicy, RNNPolicy, batch_for

FULL = IMPALA(optimizer="rmsprop", anneal=True, entropy_end=0.0, value_loss="huber", epochs=2, normalise_reward=True)


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.module.parameters()])


def both():
    return [(MLPPolicy(), 0), (RNNPolicy(), 4)]


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_on_policy_nothing_is_corrected(policy, chunk):
    batch = batch_for(policy, 16, 4, chunk)
    stats = IMPALA().build(policy).step(batch, 0.0)
    assert abs(stats["approx_kl"]) < 1e-6
    assert stats["rho"] == pytest.approx(1.0, abs=1e-5)
    assert stats["n_updates"] == 1.0


def test_the_loss_is_that_of_the_paper_averaged_over_valid_rows():
    policy, actor = MLPPolicy(seed=0, scale=2.0), MLPPolicy(seed=1)
    batch = batch_for(actor, 16, 4)
    now = policy.evaluate(batch["obs"][:-1], batch["action"], None, None, {})
    names = ("terminated", "truncated", "valid")
    log_rho, value = (now.log_prob - batch["log_prob"]).detach(), now.value.detach()
    flag = {name: batch[name] for name in names}
    options = {"gamma": 0.9, "rho_bar": 1.5, "c_bar": 0.8, "lam": 0.7}
    advantage, target = vtrace(log_rho, batch["reward"], value, last_value(policy, batch), **flag, **options)
    valid = batch["valid"]
    expected = {
        "policy_gradient_loss": -(advantage / 2 * now.log_prob)[valid].mean(),
        "value_loss": ((now.value - target) / 2)[valid].square().mean(),
        "entropy_loss": -now.entropy[valid].mean(),
    }
    stats = IMPALA(**options, entropy=0.02, value_weight=0.3).build(policy).step(batch, 0.0)
    for name, x in expected.items():
        assert stats[name] == pytest.approx(x.item(), rel=1e-4), name
    loss = stats["policy_gradient_loss"] + 0.3 * stats["value_loss"] + 0.02 * stats["entropy_loss"]
    assert stats["loss"] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_it_goes_on_from_a_file_bit_for_bit(policy, chunk):
    learner = FULL.build(policy, 3)
    learner.step(batch_for(policy, 16, 4, chunk, seed=1), 0.1)
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(policy)
    resumed = FULL.build(twin)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    batch = batch_for(policy, 16, 4, chunk, seed=2)
    assert learner.step(batch, 0.2) == resumed.step(batch, 0.2)
    assert torch.equal(weights(policy), weights(twin))


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_invalid_rows_have_no_influence(policy, chunk):
    actor = copy.deepcopy(policy)
    with torch.no_grad():
        for p in policy.module.parameters():
            p += 0.1
    batch = batch_for(actor, 16, 4, chunk)
    valid = batch["valid"]
    spoiled = dict(batch)
    for name in ("reward", "log_prob", "value"):
        spoiled[name] = torch.where(valid, batch[name], torch.nan)
    spoiled["action"] = torch.where(valid, batch["action"], 1 - batch["action"])
    # The observation of a reset row is the bootstrap of a truncated episode; elsewhere it is ignored.
    before = torch.cat([torch.ones_like(valid[:1]), batch["terminated"][:-1]])
    obs = batch["obs"].clone()
    obs[:-1][~valid & before] = 1e3
    spoiled["obs"] = obs
    twin = copy.deepcopy(policy)
    assert FULL.build(policy).step(batch, 0.0) == FULL.build(twin).step(spoiled, 0.0)
    assert torch.equal(weights(policy), weights(twin))


def test_value_scale_is_updated_after_the_step_with_valid_targets():
    policy = MLPPolicy(scale=10.0)
    batch = batch_for(policy, 16, 4)
    IMPALA().build(policy).step(batch, 0.0)
    assert [x.shape for x in policy.targets] == [(batch["valid"].sum(),)]
    assert torch.equal(policy.observed[0], batch["obs"][:-1][batch["valid"]])


def test_what_is_not_finite_stops_the_run():
    policy = MLPPolicy()
    batch = batch_for(policy, 8, 2)
    batch["log_prob"][batch["valid"]] = torch.nan
    with pytest.raises(FloatingPointError, match=r"IMPALA: loss is nan in update 1; .* log_prob"):
        IMPALA().build(policy).step(batch, 0.0)


def test_a_batch_of_reset_rows_is_refused():
    policy = MLPPolicy()
    batch = batch_for(policy, 1, 1) | {"valid": torch.zeros(1, 1, dtype=torch.bool)}
    with pytest.raises(UserError, match="no valid row"):
        IMPALA().build(policy).step(batch, 0.0)
