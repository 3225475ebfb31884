"""Environments that are made in a way of their own train with the same command; what is reported is the true score."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.envs.envpool import source
from srl.envs.fake_envpool import PoolPackage
from srl.metrics import read_rows
from srl.recipes.ppo import ppo
from srl.runs import find

SHORT = {"steps": 400, "rollout": 16, "envs": 4, "minibatches": 2, "epochs": 1, "hidden": (16,)}


def trained(env: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """The summary of a short run."""
    experiment = ppo(env, **SHORT)
    actors = {"main": replace(experiment.actors["main"], env_kwargs=options)}
    run = srl.train(replace(experiment, actors=actors), launcher="serial", runs_folder=folder, quiet=True)
    return run.summary


@pytest.mark.parametrize(
    ("env", "package", "options"),
    [
        ("BreakoutNoFrameskip-v4", "ale_py", {"life_loss": True, "max_num_frames_per_episode": 200}),
        ("HalfCheetah-v5", "mujoco", {"max_episode_steps": 50}),
        ("VizdoomBasic-v1", "vizdoom", {"frame_skip": 20}),
        ("envpool:Pong-v5", "envpool", {"max_episode_steps": 50}),
        ("srl.envs.fake:WritesInPlace", "srl", {"buffers_move": True}),
    ],
)
def test_each_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, package: str, options: dict[str, Any]
) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    summary = trained(env, tmp_path, **options)
    assert summary["steps"] >= 400
    assert summary["episodes"] >= 4


def test_scores_are_of_whole_games_and_not_clipped(tmp_path: Path) -> None:
    """A game has 3 lives of 2 steps that each pay 5 or 6; learning sees 1 for each, and an episode for each life."""
    summary = trained(source("Lives-v5", PoolPackage()), tmp_path, episodic_life=True)
    assert 30 <= summary["ep_rew_mean"] <= 36
    lengths = [row["rollout/ep_len_mean"] for row in read_rows(find(tmp_path, "latest").metrics)]
    assert set(lengths) == {6.0}
