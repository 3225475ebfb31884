"""What bounds a run is named at its end: each part in turn is made the slow one, in runs of true processes."""

import time
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

import srl
from srl.experiment import Stop
from srl.models.config import MLP
from srl.recipes.ppo import ppo

SECONDS = 5.0
NAP = 0.01


@dataclass(frozen=True)
class SlowActing:
    """An encoder that takes its time, but not while it learns."""

    def build(self, obs_spec: Any) -> nn.Module:
        encoder = MLP(hidden=(4,)).build(obs_spec)

        def nap(*_: Any) -> None:
            if not torch.is_grad_enabled():
                time.sleep(NAP)

        encoder.register_forward_pre_hook(nap)
        return encoder


class SlowLearner:
    """Learns nothing, slowly."""

    def __init__(self, nap: float) -> None:
        self._nap = nap

    def step(self, batch: Any, progress: float) -> dict[str, float]:
        time.sleep(self._nap)
        return {"loss": 0.0}

    def state_dict(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class SlowLearning:
    """The algorithm of a slow learner."""

    nap: float

    def build(self, policy: Any, seed: int = 0) -> SlowLearner:
        return SlowLearner(self.nap)


def base(env: str = "srl.envs.fake:ConstantReward", **parameters: Any):
    shape = {"envs": 4, "rollout": 16, "actors": 1, "minibatches": 1, "epochs": 1, "steps": 10**6, "compile": False}
    return replace(ppo(env, **{**shape, **parameters}), stop=Stop(seconds=SECONDS), log_every=64)


def slow_environment(**parameters: Any):
    experiment = base("srl.envs.fake:Slow", **parameters)
    actors = replace(experiment.actors["main"], env_kwargs={"seconds": NAP})
    return replace(experiment, actors={"main": actors})


def slow_acting(**parameters: Any):
    experiment = base(**parameters)
    policies = experiment.policies["main"]
    model: Any = policies.model
    # The value of the last row is computed by the trainer, so long segments leave the sleeping to those who act.
    policies = replace(policies, model=replace(model, encoder=SlowActing(), shared=True))
    return replace(experiment, policies={"main": policies})


def slow_learning(nap: float, **parameters: Any):
    experiment = base(**parameters)
    trainers = replace(experiment.trainers["main"], algorithm=SlowLearning(nap))
    return replace(experiment, trainers={"main": trainers})


def turns():
    """Acting and learning take about the same time, and neither may run ahead."""
    experiment = slow_learning(16 * 4 * NAP, max_lag=0)
    actors = replace(experiment.actors["main"], env="srl.envs.fake:Slow", env_kwargs={"seconds": NAP})
    return replace(experiment, actors={"main": actors})


@pytest.mark.parametrize(
    ("experiment", "named", "advised"),
    [
        (slow_environment(), "environments", "--actors"),
        (slow_environment(max_lag=1), "environments", "--actors"),
        (slow_acting(max_lag=1), "inference", "--actors"),
        (slow_acting(act="shm", max_lag=1), "inference", "policy workers"),
        (slow_learning(0.3, max_lag=1), "training", "--threads"),
        (turns(), "credits", "--max-lag"),
    ],
    ids=["environment", "environment, ahead", "acting inline", "acting in a policy worker", "learning", "turns"],
)
def test_the_slow_part_is_named_and_so_is_what_to_change(tmp_path, experiment, named, advised):
    bound = srl.train(experiment, runs_folder=tmp_path, quiet=True).summary["bound"]
    assert bound.startswith(named), bound
    assert advised in bound
