"""The PPO learner on true small policies."""

import copy
import io

import pytest
import torch

from srl.algorithms import PPO, losses
from srl.algorithms.chunks import Chunks
from srl.algorithms.ppo import VTrace
from srl.errors import UserError

from .fakes import MLPPolicy, RNNPolicy, batch_for, flags

FULL = PPO(
    anneal=True,
    value_clip=0.2,
    dual_clip=3.0,
    entropy_end=0.0,
    value_loss="huber",
    normalise_reward=True,
    epochs=2,
    minibatches=3,
)


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.module.parameters()])


def both():
    return [(MLPPolicy(), 0), (RNNPolicy(), 4)]


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_before_any_update_the_ratio_is_one(policy, chunk):
    stats = PPO(epochs=1, minibatches=1).build(policy).step(batch_for(policy, 16, 4, chunk), 0.0)
    assert abs(stats["approx_kl"]) < 1e-6
    assert stats["clip_fraction"] == 0.0
    assert abs(stats["policy_gradient_loss"]) < 1e-6
    assert stats["n_updates"] == 1.0


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_same_seed_same_weights(policy, chunk):
    results = []
    for seed in (1, 1, 2):
        twin = copy.deepcopy(policy)
        FULL.build(twin, seed).step(batch_for(policy, 16, 4, chunk), 0.5)
        results.append(weights(twin))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_it_goes_on_from_a_file_bit_for_bit(policy, chunk):
    learner = FULL.build(policy, 3)
    learner.step(batch_for(policy, 16, 4, chunk, seed=1), 0.1)
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    twin = copy.deepcopy(policy)
    resumed = FULL.build(twin, 99)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    batch = batch_for(policy, 16, 4, chunk, seed=2)
    assert learner.step(batch, 0.2) == resumed.step(batch, 0.2)
    assert torch.equal(weights(policy), weights(twin))


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_invalid_rows_have_no_influence(policy, chunk):
    batch = batch_for(policy, 16, 4, chunk)
    valid = batch["valid"]
    assert not valid.all()
    spoiled = dict(batch)
    for name in ("reward", "log_prob"):
        spoiled[name] = torch.where(valid, batch[name], torch.nan)
    spoiled["action"] = torch.where(valid, batch["action"], 1 - batch["action"])
    obs = batch["obs"].clone()
    obs[:-1][~valid] = 1e3
    spoiled["obs"] = obs
    # The value of a reset row is the bootstrap of a truncated episode; elsewhere it is ignored.
    before = torch.cat([torch.ones_like(valid[:1]), batch["terminated"][:-1]])
    spoiled["value"] = torch.where(~valid & before, torch.nan, batch["value"])
    twin = copy.deepcopy(policy)
    assert FULL.build(policy).step(batch, 0.0) == FULL.build(twin).step(spoiled, 0.0)
    assert torch.equal(weights(policy), weights(twin))
    assert torch.equal(policy.observed[0], twin.observed[0])
    assert torch.equal(policy.observed[0], batch["obs"][:-1][valid])


def test_advantages_are_normalised_over_the_whole_batch():
    policy = MLPPolicy()
    batch = batch_for(policy, 16, 4)
    learner = PPO().build(policy)
    _, advantage, target = learner._targets(batch)
    rows = learner._chunks(batch, advantage, target).rows
    assert torch.equal(rows["advantage"][0], losses.normalised(advantage, batch["valid"]).flatten())
    kept = PPO(normalise_advantage=False).build(policy)._chunks(batch, advantage, target).rows
    assert torch.equal(kept["advantage"][0], advantage.flatten())


def test_chunks_have_the_gradient_of_whole_columns_with_the_state_detached_between_chunks():
    policy = RNNPolicy()
    batch = batch_for(policy, 12, 3, chunk=4)
    learner = PPO(normalise_advantage=False).build(policy)
    more = {"log_prob": batch["log_prob"] + 0.1, "advantage": batch["reward"], "target": batch["reward"]}
    chunks = Chunks.cut(batch, **more)
    learner._losses(chunks.rows, chunks.state, torch.tensor(1.0), torch.tensor(0.01))["loss"].backward()
    found = [p.grad.clone() for p in policy.module.parameters()]

    policy.module.zero_grad()
    state, features = batch["state"]["h"][0], []
    for t in range(12):
        state = state.detach() if t % 4 == 0 else state
        features.append(policy.unroll(batch["obs"][t : t + 1], batch["first"][t : t + 1], state)[0])
        state = features[-1][0]
    now = MLPPolicy.evaluate(policy, torch.cat(features), batch["action"], None, None, {})
    valid, advantage = batch["valid"], batch["reward"]
    ratio = (now.log_prob - more["log_prob"]).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    loss = -gain + 0.5 * (now.value - batch["reward"]).square() - 0.01 * now.entropy
    loss[valid].mean().backward()
    torch.testing.assert_close(found, [p.grad for p in policy.module.parameters()])


def test_the_loss_is_that_of_the_settings_averaged_over_valid_rows():
    policy, actor = MLPPolicy(seed=0, scale=2.0), MLPPolicy(seed=1)
    batch = batch_for(actor, 16, 4)
    batch["log_prob"] -= 1.5 * torch.rand(16, 4, generator=torch.Generator().manual_seed(0))
    settings = PPO(clip=0.3, value_clip=0.1, dual_clip=1.5, value_weight=0.3, entropy=0.02, epochs=1, minibatches=1)
    learner = settings.build(policy)
    _, advantage, target = learner._targets(batch)
    now = policy.evaluate(batch["obs"][:-1], batch["action"], None, None, {})
    valid = batch["valid"]
    ratio = (now.log_prob - batch["log_prob"]).exp()
    advantage = losses.normalised(advantage, valid)
    value, old, target = now.value / 2, batch["value"] / 2, target / 2
    expected = {
        "policy_gradient_loss": losses.clipped_surrogate(ratio, advantage, 0.3, 1.5)[valid].mean(),
        "value_loss": losses.clipped_value_error(value, old, target, 0.1)[valid].mean(),
        "entropy_loss": -now.entropy[valid].mean(),
        "clip_fraction": ((ratio - 1).abs() > 0.3)[valid].float().mean(),
    }
    stats = learner.step(batch, 0.0)
    for name, x in expected.items():
        assert stats[name] == pytest.approx(x.item(), rel=1e-4), name
    loss = stats["policy_gradient_loss"] + 0.3 * stats["value_loss"] + 0.02 * stats["entropy_loss"]
    assert stats["loss"] == pytest.approx(loss, rel=1e-4)


def test_value_scale_divides_errors_and_learns_the_targets():
    policy, scaled = MLPPolicy(), MLPPolicy(scale=10.0)
    batch = batch_for(policy, 16, 4)
    settings = PPO(epochs=1, minibatches=1)
    stats, other = settings.build(policy).step(batch, 0.0), settings.build(scaled).step(batch, 0.0)
    assert stats["value_loss"] == pytest.approx(100 * other["value_loss"], rel=1e-4)
    assert scaled.targets[0].shape == (batch["valid"].sum(),)


def test_target_kl_stops_after_the_epoch_that_exceeds_it():
    policy = MLPPolicy()
    batch = batch_for(policy, 16, 4)
    stats = PPO(target_kl=1e-6, learning_rate=0.01, epochs=10, minibatches=2).build(policy).step(batch, 0.0)
    assert stats["approx_kl"] > 1e-6
    assert (stats["epochs"], stats["n_updates"]) == (1.0, 2.0)


def test_schedules_follow_progress():
    policy = MLPPolicy()
    learner = PPO(learning_rate=0.5, anneal=True, entropy=0.2, entropy_end=0.1).build(policy)
    before = weights(policy)
    stats = learner.step(batch_for(policy, 8, 2), 1.0)
    assert (stats["learning_rate"], stats["entropy_weight"]) == (0.0, pytest.approx(0.1))
    assert torch.equal(weights(policy), before)


def test_what_is_not_finite_stops_the_run():
    policy = MLPPolicy()
    batch = batch_for(policy, 8, 2)
    batch["reward"][batch["valid"].nonzero()[0].tolist()[0], 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"PPO: loss is nan in update 1; .* reward"):
        PPO().build(policy).step(batch, 0.0)


def test_a_batch_of_reset_rows_is_refused():
    policy = MLPPolicy()
    batch = batch_for(policy, 1, 1) | {"valid": torch.zeros(1, 1, dtype=torch.bool)}
    with pytest.raises(UserError, match="no valid row"):
        PPO().build(policy).step(batch, 0.0)


def test_more_minibatches_than_rows():
    policy = MLPPolicy()
    stats = PPO(epochs=1, minibatches=50).build(policy).step(batch_for(policy, 2, 2, ends=0.0), 0.0)
    assert stats["n_updates"] <= 4


def test_a_constant_reward_is_learned_with_its_true_worth():
    """Reward 1 for ever, cut by truncation alone, is worth 1 / (1 - gamma)."""
    policy = MLPPolicy()
    learner = PPO(gamma=0.8, learning_rate=0.01, entropy=0.0, minibatches=1).build(policy)
    ends = torch.zeros(16, 4, dtype=torch.long)
    ends[5::6] = 2
    terminated, truncated, valid, first = flags(ends, torch.zeros(4, dtype=torch.bool))
    obs = torch.ones(17, 4, 3)
    for _ in range(300):
        with torch.no_grad():
            now = policy.evaluate(obs[:-1], torch.zeros(16, 4, dtype=torch.long), None, first, {})
        learner.step(
            {
                "obs": obs,
                "first": first,
                "action": torch.zeros(16, 4, dtype=torch.long),
                "log_prob": now.log_prob,
                "value": now.value,
                "reward": valid.float(),
                "terminated": terminated,
                "truncated": truncated,
                "valid": valid,
            },
            0.0,
        )
    assert policy.value(obs[0], first[0], {})[0].item() == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_vtrace_changes_nothing_where_the_batch_is_of_the_newest_weights(policy, chunk):
    batch = batch_for(policy, 16, 4, chunk)
    twin = copy.deepcopy(policy)
    plain = PPO().build(policy, 1).step(batch, 0.0)
    corrected = PPO(vtrace=VTrace()).build(twin, 1).step(batch, 0.0)
    assert corrected == pytest.approx(plain, abs=1e-5)
    torch.testing.assert_close(weights(twin), weights(policy))


@pytest.mark.parametrize(("policy", "chunk"), both())
def test_vtrace_trusts_less_what_the_policy_would_not_do_again(policy, chunk):
    batch = batch_for(policy, 16, 4, chunk)
    # The one that acted was surer of its actions by far than the policy is now.
    old = batch | {"log_prob": batch["log_prob"] + 5.0}
    twin = copy.deepcopy(policy)
    plain = PPO(epochs=1, normalise_advantage=False).build(policy, 1).step(old, 0.0)
    corrected = PPO(epochs=1, normalise_advantage=False, vtrace=VTrace()).build(twin, 1).step(old, 0.0)
    assert corrected["value_loss"] < 0.1 * plain["value_loss"]
