"""A run that was killed and resumed gives the weights that it would have given anyway, bit for bit."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

import srl
from srl import control, runs
from srl.envs.fake import Counting
from srl.metrics import STEPS, read_rows
from srl.params import file as checkpoints
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from srl.settings import to_yaml

BASE = {"envs": 8, "rollout": 32, "actors": 2, "compile": False}
UPDATE = 8 * 32
KINDS = {
    "ppo": (ppo, {"env": "CartPole-v1", "minibatches": 2}),
    "ppo, single environments": (ppo, {"env": "Acrobot-v1", "minibatches": 2, "normalise": True}),
    "ppo, lstm, normalised": (ppo, {"env": "CartPole-v1", "memory": "lstm", "normalise": True, "minibatches": 2}),
    "ppo, continuous, popart": (ppo, {"env": "Pendulum-v1", "popart": True, "minibatches": 2}),
    "ppo, two trainers": (ppo, {"env": "CartPole-v1", "minibatches": 2, "normalise": True, "trainers": 2}),
    "impala": (impala, {"env": "CartPole-v1", "max_lag": 0}),
    "ppo, isolated": (ppo, {"env": "CartPole-v1", "isolate": True, "minibatches": 2}),
}
KILLS_ITSELF = """
import os, signal, sys
from pathlib import Path
from srl import control, runs
from srl.experiment import Experiment
from srl.settings import from_yaml

class Kills:
    def write(self, row):
        if row["time/total_timesteps"] >= int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self): ...

folder = Path(sys.argv[1])
if (folder / "run").exists():
    run = runs.find(folder, "run")
    control.resume(run, run.experiment(), quiet=True, sinks=[Kills()])
else:
    experiment = from_yaml(Experiment, (folder / "experiment.yaml").read_text())
    control.train(experiment, runs_folder=folder, name="run", quiet=True, sinks=[Kills()])
"""
"""Trains in a folder, or goes on there, until it has trained on so many steps; then it is killed."""


class Unsaid(Counting):
    """Cannot say how it stands."""

    def get_state(self):
        return None

    def set_state(self, state): ...


def experiment(kind: str, steps: int):
    recipe, parameters = KINDS[kind]
    made = recipe(**{**BASE, **parameters, "steps": steps, "stop_at_reward": 1e9})
    return replace(made, checkpoint_every=4 * UPDATE, log_every=UPDATE)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_is_as_if_nothing_had_happened(tmp_path, kind):
    straight = srl.train(experiment(kind, 16 * UPDATE), runs_folder=tmp_path, name="straight", quiet=True)
    (tmp_path / "experiment.yaml").write_text(to_yaml(experiment(kind, 16 * UPDATE)))
    for steps in (6 * UPDATE, 11 * UPDATE):
        killed = subprocess.run([sys.executable, "-c", KILLS_ITSELF, str(tmp_path), str(steps)], timeout=120)
        assert killed.returncode == -signal.SIGKILL
    run = runs.find(tmp_path, "run")
    resumed = control.resume(run, run.experiment(), quiet=True)
    assert resumed.summary["weights_sha256"] == straight.summary["weights_sha256"]
    for name in ("steps", "version", "episodes", "ep_rew_mean", "best_ep_rew_mean"):
        assert resumed.summary[name] == straight.summary[name], name
    curves = [[row for row in read_rows(path / "metrics.jsonl") if STEPS in row] for path in (straight.path, run.path)]
    expected, got = (
        [(row[STEPS], row["train/loss"], row.get("rollout/ep_rew_mean")) for row in rows] for rows in curves
    )
    assert got == expected


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"env": "PongNoFrameskip-v4"}, "environments of the kind Atari do not say how they stand"),
        ({"env": "tests.conformance.test_exact_resume:Unsaid"}, "get_state() returns None"),
        ({"env": "tests.conformance.test_exact_resume:Unsaid", "isolate": True}, "get_state() returns None"),
        ({"env": "tests.conformance.test_exact_resume:Unsaid", "max_lag": 1}, None),
        ({"env": "CartPole-v1"}, None),
        ({"env": "CartPole-v1", "isolate": True}, None),
    ],
)
def test_a_run_says_at_its_start_that_it_cannot_be_resumed_exactly(tmp_path, capsys, parameters, why):
    made = ppo(**{**BASE, "envs": 4, "rollout": 8, **parameters}, steps=64, minibatches=1)
    srl.train(made, runs_folder=tmp_path, launcher="serial")
    told = [line for line in capsys.readouterr().err.splitlines() if "not bit for bit" in line]
    assert len(told) == (why is not None)
    assert all("this run resumes, but not bit for bit: " in line and why in line for line in told)


KILLED_WHILE_EVALUATING = """
import os, signal, sys, threading, time
from pathlib import Path
from srl import control
from srl.experiment import Experiment
from srl.settings import from_yaml

folder = Path(sys.argv[1])
latest = folder / "run" / "checkpoints" / "main" / "latest"

def kill():
    while not latest.exists() or int(latest.resolve().name.split("_")[1]) < int(sys.argv[2]):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
experiment = from_yaml(Experiment, (folder / "experiment.yaml").read_text())
control.train(experiment, runs_folder=folder, name="run", quiet=True)
"""
"""Trains until the last checkpoint is written; then only the last evaluation is left to do."""


def test_killed_during_the_last_evaluation_it_is_done_and_nothing_else(tmp_path):
    made = ppo("srl.envs.fake:Slow", **BASE, minibatches=1, steps=4 * UPDATE, eval_every=10**6)
    seconds = {"main": 0.0, "eval": 0.005}
    groups = {name: replace(group, env_kwargs={"seconds": seconds[name]}) for name, group in made.actors.items()}
    made = replace(made, actors=groups)
    (tmp_path / "experiment.yaml").write_text(to_yaml(made))
    command = [sys.executable, "-c", KILLED_WHILE_EVALUATING, str(tmp_path), str(3 * UPDATE)]
    assert subprocess.run(command, timeout=120).returncode == -signal.SIGKILL
    run = runs.find(tmp_path, "run")
    checkpoint = checkpoints.load(run.checkpoints("main"), "latest")
    assert not [row for row in read_rows(run.metrics) if "eval/mean_reward" in row], "it was evaluated before the kill"
    summary = control.resume(run, made, quiet=True).summary
    assert (summary["status"], summary["weights_sha256"]) == ("completed", checkpoint.meta["weights_sha256"])
    evaluated = [row[STEPS] for row in read_rows(run.metrics) if "eval/mean_reward" in row]
    assert evaluated == [summary["steps"]] == [checkpoint.meta["steps"]]
    assert control.resume(run, made, quiet=True).summary["eval_mean_reward"] == summary["eval_mean_reward"]
    assert len([row for row in read_rows(run.metrics) if "eval/mean_reward" in row]) == 1
