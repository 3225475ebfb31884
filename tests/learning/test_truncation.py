"""A world that pays 1 for ever and is only ever cut off is worth 1 / (1 - gamma), whatever the time limit."""

from pathlib import Path

import numpy as np
import pytest

import srl
from srl.experiment import Experiment
from srl.recipes.ppo import ppo
from srl.tree import zeros

GAMMA = 0.95
WORTH = 1 / (1 - GAMMA)


def experiment(memory: str) -> Experiment:
    """A run long enough for the value to settle; PopArt because values are far from 0 at the start."""
    return ppo(
        "srl.envs.fake:ConstantReward",
        steps=100_000,
        envs=16,
        rollout=64,
        gamma=GAMMA,
        learning_rate=3e-3,
        anneal=True,
        hidden=(16,),
        memory=memory,
        popart=True,
    )


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_learned_value_is_that_of_a_world_without_end(tmp_path: Path, memory: str) -> None:
    result = srl.train(experiment(memory), launcher="serial", runs_folder=tmp_path, quiet=True)
    trained = srl.load(result.path)
    obs, state = np.ones((1, 1), np.float32), zeros(trained.shapes.state, 1)
    values: list[float] = []
    for step in range(50):
        reply = trained.policy.act({"obs": obs, "first": np.array([step == 0]), "state": state})
        values.append(float(reply["value"][0]))
        state = reply["state"]
    assert np.abs(np.array(values) / WORTH - 1).max() < 0.02, values
