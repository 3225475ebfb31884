"""Learners and the actor-critic of srl.models: acting and learning must agree for every kind of policy."""

import pytest

from srl.algorithms import IMPALA, PPO
from srl.models.config import GRU, LSTM, ActorCritic, PopArt

from .acted import ACTION, MASK, OBS, play


@pytest.mark.parametrize("memory", [None, LSTM(size=8), GRU(size=8)], ids=["feedforward", "lstm", "gru"])
@pytest.mark.parametrize("settings", [PPO(epochs=1, minibatches=1), IMPALA()], ids=["ppo", "impala"])
def test_what_acted_and_what_learns_agree(settings, memory):
    model = ActorCritic(memory=memory, normalise_obs=True, popart=PopArt())
    policy = model.build(OBS, ACTION, MASK)
    learner = settings.build(policy)
    for seed in range(3):
        stats = learner.step(play(policy, seed), 0.0)
        assert abs(stats["approx_kl"]) < 1e-5
        assert stats["clip_fraction"] == 0.0 or isinstance(settings, IMPALA)
        assert stats["grad_norm"] > 0
    assert policy.value_scale() > 1
