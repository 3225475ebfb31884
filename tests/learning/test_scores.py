"""The scores that the recipes promise: CartPole always, every environment on three seeds with `make learning`."""

from pathlib import Path

import pytest

import srl
from srl import play, runs
from srl.experiment import Experiment
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo

SEEDS = (1, 2, 3)


def reached(experiment: Experiment, folder: Path, launcher: str = "local") -> dict:
    """The summary of a run that went to its end."""
    return srl.train(experiment, launcher=launcher, runs_folder=folder, quiet=True).summary


def evaluated(folder: Path) -> float:
    """The mean reward that the trained policy gets in fresh episodes, most likely actions only."""
    options = play.Options(episodes=100, seed=12345)
    return play.evaluation(runs.find(folder, "latest"), options).mean


def test_ppo_solves_cartpole_within_a_minute(tmp_path: Path) -> None:
    summary = reached(ppo("CartPole-v1"), tmp_path)
    assert summary["ep_rew_mean"] >= 475
    assert summary["seconds"] < 60
    assert evaluated(tmp_path) >= 475


def test_ppo_with_lstm_remembers_what_no_feedforward_policy_can(tmp_path: Path) -> None:
    task = {"env": "srl.envs.fake:Recall", "rollout": 32, "steps": 40_000, "stop_at_reward": 0.98}
    assert reached(ppo(memory="lstm", **task), tmp_path)["ep_rew_mean"] >= 0.98
    assert reached(ppo(memory="none", **task), tmp_path)["best_ep_rew_mean"] < 0.75


PROMISES = {
    "CartPole-v1": 475.0,
    "Acrobot-v1": -100.0,
    "LunarLander-v3": 200.0,
    "Pendulum-v1": -200.0,
    "HalfCheetah-v5": 3000.0,
}


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("env", PROMISES)
def test_ppo_reaches_what_it_promises(tmp_path: Path, env: str, seed: int) -> None:
    summary = reached(ppo(env, seed=seed), tmp_path)
    assert summary["ep_rew_mean"] >= PROMISES[env]
    assert evaluated(tmp_path) >= PROMISES[env]
    if env == "CartPole-v1":
        assert summary["seconds"] < 60


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_recurrent_ppo_remembers(tmp_path: Path, memory: str, seed: int) -> None:
    task = {"rollout": 32, "steps": 100_000, "stop_at_reward": 0.98}
    summary = reached(ppo("srl.envs.fake:Recall", memory=memory, seed=seed, **task), tmp_path)
    assert summary["ep_rew_mean"] >= 0.98


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
def test_impala_solves_cartpole(tmp_path: Path, seed: int) -> None:
    assert reached(impala("CartPole-v1", seed=seed), tmp_path)["ep_rew_mean"] >= 475


@pytest.mark.learning
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("launcher", "options"),
    [
        ("serial", {}),
        ("local", {"actors": 2}),
        ("local", {"actors": 2, "act": "shm", "policy_workers": 2}),
        ("local", {"actors": 2, "act": "shm", "max_lag": 1}),
        ("local", {"actors": 2, "max_lag": 4}),
    ],
)
def test_every_shape_reaches_the_same_quality(tmp_path: Path, launcher: str, options: dict, seed: int) -> None:
    assert reached(ppo("CartPole-v1", seed=seed, **options), tmp_path, launcher)["ep_rew_mean"] >= 475
