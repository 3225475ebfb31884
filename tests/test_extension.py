"""An environment, an encoder, an algorithm and a recipe from outside the package, trained, evaluated and resumed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import srl

FILES = {
    "my_env.py": '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Echo(gymnasium.Env):
    """Reward 1 for naming the bit that is shown; ten steps."""

    def __init__(self):
        self.observation_space = spaces.Dict({"bit": spaces.Discrete(2, start=5), "time": spaces.Box(0, 10, (1,))})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def observe(self):
        self.bit = int(self.np_random.integers(2))
        return {"bit": self.bit + 5, "time": np.array([self.time], np.float32)}

    def step(self, action):
        reward = float(action == self.bit)
        self.time += 1
        return self.observe(), reward, False, self.time == 10, {}
''',
    "my_encoder.py": '''
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Table:
    """A learnt row for each bit, beside the time."""

    width: int = 16

    def build(self, obs_spec):
        return TableEncoder(self.width, obs_spec)


class TableEncoder(nn.Module):
    def __init__(self, width, obs_spec):
        super().__init__()
        self.rows = nn.Embedding(obs_spec["bit"].n[0], width)
        self.features = width + obs_spec["time"].size

    def forward(self, obs):
        return torch.cat([self.rows(obs["bit"]), obs["time"] / 10], 1)
''',
    "my_algorithm.py": '''
from dataclasses import dataclass

import torch

from srl.algorithms.losses import masked_mean
from srl.tree import index


@dataclass(frozen=True, kw_only=True)
class Reinforce:
    """The gradient of the reward of the row, and nothing more."""

    learning_rate: float = 0.01

    def build(self, policy, seed=0):
        return Learner(self, policy)


class Learner:
    def __init__(self, settings, policy):
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.module.parameters(), settings.learning_rate)

    def step(self, batch, progress):
        rows = slice(len(batch["valid"]))
        now = self.policy.evaluate(index(batch["obs"], rows), batch["action"], None, batch["first"][rows], {})
        centred = batch["reward"] - masked_mean(batch["reward"], batch["valid"])
        loss = -masked_mean(now.log_prob * centred, batch["valid"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)
''',
    "my_recipe.py": '''
from my_algorithm import Reinforce
from my_encoder import Table

from srl import ActorCritic, Actors, Experiment, Policies, Stop, Train, Trainers


def recipe(width: int = 16, *, steps: int = 12_000) -> Experiment:
    """Learn to echo.

    Args:
        width: width of the table
        steps: steps to train on
    """
    return Experiment(
        name="echo",
        actors=Actors(env="my_env:Echo", envs=8),
        policies=Policies(model=ActorCritic(encoder=Table(width=width))),
        trainers=Trainers(algorithm=Reinforce()),
        streams=Train(rollout=32),
        stop=Stop(steps=steps),
    )
''',
}
MINE = ("--trust", "my_env,my_encoder,my_algorithm")


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "srl.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of a user, and the run they trained."""
    folder = tmp_path_factory.mktemp("mine")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    trained = command(folder, "train", "my_recipe:recipe", "--width", "8", "--name", "echo", "--quiet")
    assert trained.returncode == 0, trained.stderr
    return folder


def test_it_learns(folder: Path) -> None:
    summary = json.loads((folder / "runs" / "echo" / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["ep_rew_mean"] > 9


def test_it_is_evaluated_by_those_who_trust_it(folder: Path) -> None:
    done = command(folder, "eval", "echo", "--episodes", "4", *MINE)
    assert done.returncode == 0, done.stderr
    assert "mean reward 10.00" in done.stdout


def test_it_is_not_imported_without_trust(folder: Path) -> None:
    done = command(folder, "eval", "echo", "--trust", "my_algorithm")
    assert done.returncode == 2
    assert (
        done.stderr == "srl: 'my_encoder:Table' is not part of srl; if you trust it, allow it with --trust my_encoder\n"
    )


def test_it_is_shown_with_its_settings(folder: Path) -> None:
    done = command(
        folder, "show", "my_recipe:recipe", "--width", "4", "--set", "trainers.main.algorithm.learning_rate=1"
    )
    assert done.returncode == 0, done.stderr
    assert "1 x 1 x 8 environments my_env:Echo" in done.stdout
    assert "type: my_encoder:Table\n        width: 4" in done.stdout
    assert "type: my_algorithm:Reinforce\n      learning_rate: 1.0" in done.stdout


def test_it_is_resumed(folder: Path) -> None:
    done = command(folder, "resume", "echo", "--steps", "14000", "--quiet", *MINE)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "runs" / "echo" / "summary.json").read_text())["steps"] >= 14_000


def test_it_is_loaded_without_its_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    policy = srl.load(folder / "runs" / "echo", trust=["my_encoder", "my_algorithm"])
    assert "my_env" not in sys.modules
    for bit in (0, 1):
        action, _ = policy.predict({"bit": bit + 5, "time": [3.0]})
        assert action == bit
