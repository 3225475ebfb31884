"""Environments that fail do not end a run: their episodes are left out, and every fault is counted."""

from dataclasses import replace
from pathlib import Path

import pytest

import srl
from srl.errors import UserError
from srl.experiment import Faults
from srl.launchers.base import WorkerFailed
from srl.metrics import read_rows
from srl.recipes.ppo import ppo

SMALL = {"envs": 8, "rollout": 32, "actors": 1, "minibatches": 1, "epochs": 1, "steps": 6_000, "compile": False}


def experiment(log: Path, *, isolate: bool, faults: Faults | None = None, **chances: float):
    made = ppo("srl.envs.fake_faults:FaultyCartPole", **SMALL)
    actors = replace(
        made.actors["main"],
        env_kwargs={"log": str(log), **chances},
        isolate=isolate,
        faults=faults or Faults(limit=10_000, step_seconds=0.5),
    )
    return replace(made, actors={"main": actors}, log_every=1_000)


@pytest.mark.parametrize("launcher", ["serial", "local"])
@pytest.mark.parametrize(
    ("isolate", "chances"),
    [(False, {"raises": 5e-3, "nans": 5e-3, "shapes": 5e-3}), (True, {"raises": 3e-3, "aborts": 3e-3, "exits": 3e-3})],
    ids=["in the actor", "isolated"],
)
def test_faults_are_counted_and_cost_only_their_episodes(tmp_path, isolate, chances, launcher):
    log = tmp_path / "log"
    made = experiment(log, isolate=isolate, **chances)
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
