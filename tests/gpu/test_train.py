"""Training on a GPU: the same recipes, with policy workers on it or not."""

import pytest

import srl
from srl.recipes.appo import appo
from srl.recipes.ppo import ppo

pytestmark = pytest.mark.gpu
SMALL = {"env": "CartPole-v1", "envs": 8, "rollout": 32, "steps": 4096, "minibatches": 2, "device": "cuda"}


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize(
    "shape",
    [{}, {"max_lag": 2}, {"act": "shm", "actors": 2, "ring": 2, "max_lag": 1}, {"trainers": 2, "actors": 2}],
    ids=["synchronous", "running ahead", "policy workers", "two trainers"],
)
def test_a_run_ends_well(tmp_path, memory, shape):
    recipe = appo if shape.get("max_lag") else ppo
    result = srl.train(recipe(**SMALL, **shape, memory=memory, normalise=True), runs_folder=tmp_path, quiet=True)
    assert result.summary["status"] == "completed"
    assert result.summary["lag_max"] <= shape.get("max_lag", 0)
    action, _ = srl.load(result.path).predict([0.0, 0.0, 0.0, 0.0])
    assert action in (0, 1)


def test_images_are_encoded_in_bfloat16(tmp_path):
    pytest.importorskip("ale_py")
    experiment = appo("PongNoFrameskip-v4", envs=8, rollout=16, steps=1024, device="cuda")
    assert srl.train(experiment, runs_folder=tmp_path, quiet=True).summary["status"] == "completed"


def test_it_learns(tmp_path):
    experiment = ppo("CartPole-v1", device="cuda", steps=200_000, compile=False)
    assert srl.train(experiment, runs_folder=tmp_path, quiet=True).summary["best_ep_rew_mean"] >= 475
