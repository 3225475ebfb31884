"""Environments that fail do not end a run: their episodes are left out, and every fault is counted."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import SyncVectorEnv

import srl
from srl.envs.fake_faults import FaultyCartPole
from srl.errors import UserError
from srl.experiment import Faults
from srl.launchers.base import WorkerFailed
from srl.metrics import read_rows
from srl.recipes.ppo import ppo
from tests import runs_of

SMALL = {"envs": 8, "rollout": 32, "actors": 1, "minibatches": 1, "epochs": 1, "steps": 6_000, "compile": False}


def vector(num_envs: int, **kwargs):
    """The same environments as one vector environment."""
    return SyncVectorEnv([partial(FaultyCartPole, **kwargs)] * num_envs)


def experiment(log: Path, *, isolate: bool, env: Any = FaultyCartPole, faults: Faults | None = None, **chances: float):
    made = ppo(env, **SMALL)
    actors = replace(
        made.actors["main"],
        env_kwargs={"log": str(log), **chances},
        isolate=isolate,
        faults=faults or Faults(limit=10_000, step_seconds=0.5),
    )
    return replace(made, actors={"main": actors}, log_every=1_000)


@pytest.mark.parametrize("launcher", ["serial", "local"])
@pytest.mark.parametrize(
    ("options", "chances"),
    [
        ({"isolate": False}, {"raises": 5e-3, "nans": 5e-3, "shapes": 5e-3}),
        ({"isolate": False, "env": vector}, {"raises": 2e-3, "nans": 5e-3}),
        ({"isolate": True}, {"raises": 3e-3, "aborts": 3e-3, "exits": 3e-3, "hangs": 3e-4}),
    ],
    ids=["one by one", "together", "isolated"],
)
def test_faults_are_counted_and_cost_only_their_episodes(tmp_path, options, chances, launcher):
    log = tmp_path / "log"
    made = experiment(log, **options, **chances)
    result = srl.train(made, runs_folder=tmp_path, launcher=launcher, quiet=True)
    injected = log.read_text().split()
    assert result.summary["status"] == "completed"
    assert set(injected) == set(chances)
    # What the actor met after the trainer had finished was perhaps not heard any more.
    assert 0 <= len(injected) - result.summary["env_restarts"] <= 8
    rows = read_rows(result.path / "metrics.jsonl")
    assert 0 < rows[-1]["env/restarts"] <= result.summary["env_restarts"]
    # An episode of CartPole pays 1 a step, so a broken one that counted would show.
    assert rows[-1]["rollout/ep_rew_mean"] == pytest.approx(rows[-1]["rollout/ep_len_mean"])


def test_too_many_faults_end_the_run_with_the_last_one(tmp_path):
    made = experiment(tmp_path / "log", isolate=False, faults=Faults(limit=5), raises=0.2)
    with pytest.raises((WorkerFailed, UserError), match="this step was told to raise"):
        srl.train(made, runs_folder=tmp_path, quiet=True)


def test_a_run_shows_what_failed_and_goes_on(tmp_path):
    """From the command line: each kind once, by its own words, and nothing is left of the environments' processes."""
    chances = "actors.main.env_kwargs={raises: 0.001, aborts: 0.001, hangs: 0.0003, shapes: 0.001}"
    settings = [chances, "actors.main.faults.step_seconds=0.5", "actors.main.faults.limit=10000", "log_every=500"]
    words = ["--envs", "8", "--rollout", "32", "--minibatches", "1", "--epochs", "1", "--no-compile", "--isolate"]
    words += ["--env", "srl.envs.fake_faults:FaultyCartPole", *(word for each in settings for word in ("--set", each))]
    run = runs_of.start(tmp_path, "ppo", *words, "--steps", "25000", "--stop-at-reward", "1e9")
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    assert len(processes) >= 4 + 1 + 4, (
        "control, nursery, trainer, actor, zygote, and the environments that live just now"
    )
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    runs_of.assert_gone(processes)
    for said in ("raised: ", "this step was told to raise", "died: was killed by SIGABRT", "hung: no answer to a step"):
        assert said in errors
    assert "shape: " in errors
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[-1]["env/restarts"] > 20


def test_one_that_hangs_in_its_actor_costs_the_actor(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from srl.envs.fake import ConstantReward\n"
        "class Hangs(ConstantReward):\n"
        "    def step(self, action):\n"
        "        self.steps = getattr(self, 'steps', 0) + 1\n"
        "        if self.steps == 2000 and not Path('hung').exists():\n"
        "            Path('hung').touch()\n"
        "            time.sleep(3600)\n"
        "        return super().step(action)\n"
    )
    words = ["--env", "hanging:Hangs", "--envs", "4", "--rollout", "32", "--minibatches", "1", "--no-compile"]
    run = runs_of.start(tmp_path, "ppo", *words, "--steps", "20000", "--set", "stall_seconds=3")
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert (tmp_path / "hung").exists()
    assert "actor-main-0 has shown no sign of life for" in errors
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["restarts"] == 1
