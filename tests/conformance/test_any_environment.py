"""Any Gymnasium spaces train with the same command, feedforward and recurrent, inline and with policy workers."""

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import srl
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo

SHORT = {"steps": 600, "rollout": 16, "envs": 4, "minibatches": 2, "epochs": 1}


class AnySpaces(gymnasium.Env):
    """Observations and actions of the given spaces; every episode is random and short."""

    def __init__(self, obs: spaces.Space, action: spaces.Space) -> None:
        self.observation_space, self.action_space = obs, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        ends = self.np_random.random(2) < 0.1
        return self.observation_space.sample(), 1.0, bool(ends[0]), bool(ends[1]), {}


BOX = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {
    "box": BOX,
    "box of doubles": spaces.Box(-2, 2, (2, 2), np.float64),
    "one number": spaces.Box(-1, 1, (), np.float32),
    "discrete": spaces.Discrete(5),
    "discrete from 3": spaces.Discrete(4, start=3),
    "multidiscrete": spaces.MultiDiscrete([2, 5, 3]),
    "multidiscrete, two axes": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    "multibinary": spaces.MultiBinary(4),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(3), "c": spaces.Dict({"d": spaces.MultiBinary(2)})}),
    "tuple": spaces.Tuple((BOX, spaces.Tuple((spaces.Discrete(2, start=1), spaces.MultiDiscrete([3, 2]))))),
}


def check(env: object, folder: Path, *, memory: str = "none", **options: object) -> None:
    """Train for a moment, and let the trained policy play."""
    result = srl.train(ppo(env, memory=memory, **SHORT), launcher="serial", runs_folder=folder, quiet=True, **options)
    assert result.summary["steps"] >= 600


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("name", SPACES)
def test_observations_of_every_kind(tmp_path: Path, name: str, memory: str) -> None:
    check(lambda: AnySpaces(SPACES[name], spaces.Discrete(2)), tmp_path, memory=memory)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_kind(tmp_path: Path, name: str, memory: str) -> None:
    check(lambda: AnySpaces(BOX, SPACES[name]), tmp_path, memory=memory)


@pytest.mark.parametrize("shape", [(84, 84, 3), (4, 64, 64)])
def test_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    check(lambda: AnySpaces(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(2)), tmp_path)


@pytest.mark.parametrize("where", ["obs", "info"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("act", ["inline", "shm"])
def test_masks_are_obeyed(tmp_path: Path, where: str, memory: str, act: str) -> None:
    # The environment raises at the first illegal action.
    for recipe in (ppo, impala):
        known = {name: SHORT[name] for name in ("steps", "rollout", "envs")}
        experiment = recipe("srl.envs.fake:Masked", memory=memory, act=act, **known)
        actors = replace(experiment.actors["main"], env_kwargs={"where": where})
        experiment = replace(experiment, actors={"main": actors})
        assert srl.train(experiment, launcher="serial", runs_folder=tmp_path, quiet=True).summary["steps"] >= 600


def test_a_trained_policy_speaks_the_language_of_the_environment(tmp_path: Path) -> None:
    env = AnySpaces(SPACES["dict"], SPACES["tuple"])
    make = lambda: AnySpaces(SPACES["dict"], SPACES["tuple"])  # noqa: E731
    result = srl.train(ppo(make, memory="lstm", **SHORT), launcher="serial", runs_folder=tmp_path, quiet=True)
    policy = srl.load(result.path)
    obs, state = env.reset(seed=1)[0], None
    for _ in range(10):
        action, state = policy.predict(obs, state)
        obs = env.step(action)[0]
    action, _ = policy.predict(obs, state, deterministic=False)
    env.step(action)


def test_an_environment_from_a_lambda_runs_in_other_processes(tmp_path: Path) -> None:
    experiment = ppo(lambda: AnySpaces(BOX, spaces.Discrete(2)), **SHORT)
    assert srl.train(experiment, runs_folder=tmp_path, quiet=True).summary["status"] == "completed"
