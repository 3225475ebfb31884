"""The workloads that SRL is compared on with others, each as the experiment that runs it fastest here.

    w1 CartPole, w2 Pong, w3 HalfCheetah, w5 Pong with an LSTM; e1 stands for one epoch, v for Gymnasium's own vector

Work is what others do too: environments, network, batch, epochs, minibatches. How it is spread over processes is ours.
They train for ever; `srl bench` ends them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from srl.errors import UserError, nearest
from srl.experiment import Experiment, Stop
from srl.models.config import LSTM
from srl.recipes.ppo import ppo

CARTPOLE = {"envs": 32, "rollout": 128, "epochs": 4, "minibatches": 4, "learning_rate": 3e-4, "compile": True}
PONG = {
    "envs": 16,
    "rollout": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "clip": 0.1,
    "entropy": 0.01,
}
CHEETAH = {"envs": 8, "rollout": 256, "epochs": 10, "minibatches": 32, "learning_rate": 3e-4, "compile": True}


def pole() -> Any:
    """CartPole as a single environment, which all others step, too."""
    import gymnasium

    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def w1() -> Experiment:
    """PPO on CartPole, single environments stepped one by one."""
    return _ppo(pole, **CARTPOLE, max_lag=1, actors=2)


def w1v() -> Experiment:
    """PPO on CartPole as Gymnasium vectorises it, which is what SRL does when it is asked for CartPole-v1."""
    return _ppo("CartPole-v1", **CARTPOLE, max_lag=1, actors=1)


def w2() -> Experiment:
    """PPO on Pong, 4 epochs, synchronous."""
    return _ppo("PongNoFrameskip-v4", **PONG)


def w2e1() -> Experiment:
    """PPO on Pong, 1 epoch, asynchronous."""
    return _ppo("PongNoFrameskip-v4", **{**PONG, "epochs": 1}, max_lag=1)


def w3() -> Experiment:
    """PPO on HalfCheetah, 10 epochs of 32 minibatches."""
    return _ppo("HalfCheetah-v5", **CHEETAH, max_lag=1, actors=1)


def w3e1() -> Experiment:
    """PPO on HalfCheetah, 1 epoch of 32 minibatches."""
    return _ppo("HalfCheetah-v5", **{**CHEETAH, "epochs": 1}, max_lag=1, actors=1)


def w5() -> Experiment:
    """w2 with an LSTM of 256 behind the network."""
    return _recurrent(w2())


def w5e1() -> Experiment:
    """w2e1 with an LSTM of 256 behind the network."""
    return _recurrent(w2e1())


def _ppo(env: Any, **parameters: Any) -> Experiment:
    experiment = ppo(env, **parameters)
    steps = parameters["envs"] * parameters["rollout"]
    return replace(experiment, stop=Stop(), log_every=steps, checkpoint_every=10**12)


def _recurrent(experiment: Experiment) -> Experiment:
    policies, streams = experiment.policies["main"], experiment.streams["main"]
    model: Any = policies.model
    return replace(
        experiment,
        policies={"main": replace(policies, model=replace(model, memory=LSTM(size=256)))},
        streams={"main": replace(streams, chunk=32)},
    )


WORKLOADS: dict[str, Callable[[], Experiment]] = {
    made.__name__: made for made in (w1, w1v, w2, w2e1, w3, w3e1, w5, w5e1)
}


def workload(name: str) -> Experiment:
    """The experiment of a workload's name."""
    if name not in WORKLOADS:
        raise UserError(f"no workload {name!r}{nearest(name, WORKLOADS)}; there are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]()
