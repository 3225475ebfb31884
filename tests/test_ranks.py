"""Runs with several trainers: as one trainer's, reproducible, and ended, interrupted or killed in order."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import srl
from srl import control, runs
from srl.control import Result
from srl.errors import UserError
from srl.experiment import Stop
from srl.metrics import STEPS, read_rows
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from tests import runs_of

IN_TIME = 20.0
UPDATE = 8 * 32
TWO = ["--trainers", "2", "--actors", "2", "--envs", "8", "--rollout", "32", "--epochs", "1", "--minibatches", "1"]


def wait_for(what, run: subprocess.Popen[str], seconds: float = IN_TIME):
    return runs_of.wait_for(what, run, seconds)


def trained(folder: Path, name: str, recipe=ppo, updates: int = 12, launcher="local", **parameters) -> Result:
    defaults = {"actors": 2, "envs": 8, "rollout": 32, "compile": False, "normalise": True, "max_lag": 0}
    made = recipe("CartPole-v1", **{**defaults, "steps": updates * UPDATE, "stop_at_reward": 1e9, **parameters})
    return srl.train(replace(made, log_every=UPDATE), runs_folder=folder, name=name, quiet=True, launcher=launcher)


@pytest.mark.parametrize(("recipe", "parameters"), [(ppo, {"minibatches": 1, "epochs": 2}), (impala, {})])
def test_two_trainers_are_as_one(tmp_path: Path, recipe, parameters) -> None:
    made = [trained(tmp_path, str(count), recipe, **parameters, trainers=count) for count in (1, 2)]
    one, two = ([row for row in read_rows(run.path / "metrics.jsonl") if STEPS in row] for run in made)
    assert len(one) == len(two) >= 12
    for expected, got in zip(one, two, strict=True):
        for name in (STEPS, "rollout/episodes", "rollout/ep_rew_mean", "rollout/ep_len_mean", "lag/max"):
            assert got.get(name) == expected.get(name), name
        for name in ("train/loss", "train/value_loss", "train/entropy_loss", "train/explained_variance"):
            assert got[name] == pytest.approx(expected[name], rel=1e-4, abs=1e-4), name
    for name in ("steps", "frames", "episodes", "ep_rew_mean", "version", "lag_max", "lag_mean"):
        assert made[1].summary[name] == made[0].summary[name]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    made = [trained(tmp_path, name, trainers=2, actors=4, minibatches=4) for name in ("one", "again")]
    assert made[0].summary["weights_sha256"] == made[1].summary["weights_sha256"]


def test_two_trainers_whose_actors_run_ahead_learn(tmp_path: Path) -> None:
    run = trained(tmp_path, "ahead", impala, updates=120, trainers=2, actors=2, max_lag=2, rollout=32)
    assert run.summary["lag_max"] <= 2
    assert run.summary["ep_rew_mean"] > 40, "at random it is about 22"


def test_trainers_in_one_thread_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one thread cannot wait for each other"):
        trained(tmp_path, "serial", trainers=2, launcher="serial")
    assert not list(tmp_path.iterdir())


def rows(folder: Path) -> list[dict]:
    return [row for row in read_rows(folder / "run" / "metrics.jsonl") if STEPS in row]


def start(folder: Path, *words: str, log_every: int = 1000) -> subprocess.Popen[str]:
    run = runs_of.start(folder, "ppo", *TWO, *runs_of.FOREVER, "--set", f"log_every={log_every}", *words)
    runs_of.wait_until_training(folder, run)
    return run


def interrupt(folder: Path, run: subprocess.Popen[str]) -> tuple[dict, str]:
    """Ctrl-C: how the run says it ended, and all it said."""
    processes = runs_of.family(run)
    run.send_signal(signal.SIGINT)
    said = "".join(run.communicate(timeout=IN_TIME))
    runs_of.assert_gone(processes)
    assert (run.returncode, "Traceback" in said) == (130, False), said
    return json.loads((folder / "run" / "summary.json").read_text()), said


def test_ctrl_c_finishes_both_and_the_run_goes_on_with_another_count(tmp_path: Path, capsys) -> None:
    run = start(tmp_path, "--max-lag", "1")
    summary, _ = interrupt(tmp_path, run)
    assert summary["status"] == "interrupted"
    steps = summary["steps"]
    meta = json.loads((tmp_path / "run" / "checkpoints" / "main" / "latest" / "meta.json").read_text())
    assert meta["steps"] == steps, "the last checkpoint is of the end"
    found = runs.find(tmp_path, "run")
    made = found.experiment()
    one = {"main": replace(made.trainers["main"], count=1)}
    result = control.resume(found, replace(made, trainers=one, stop=Stop(steps=steps + 20_000)))
    assert result.summary["steps"] >= steps + 20_000
    said = capsys.readouterr()
    assert "the checkpoint is of 2 trainer(s); all 1 go on from what its first one kept" in said.out + said.err


@pytest.mark.parametrize(
    ("worker", "number"),
    [("trainer-main-0", signal.SIGKILL), ("trainer-main-1", signal.SIGKILL), ("trainer-main-1", signal.SIGSTOP)],
)
def test_when_one_dies_all_go_on_from_the_last_checkpoint(tmp_path: Path, worker: str, number: int) -> None:
    run = start(tmp_path, "--set", "checkpoint_every=20_000")
    wait_for((tmp_path / "run" / "checkpoints" / "main" / "latest").exists, run)
    pids = runs_of.worker_pids(tmp_path, run)
    os.kill(pids[worker], number)
    wait_for(lambda: rows(tmp_path)[-1]["run/restarts"] == 1, run)
    steps = rows(tmp_path)[-1][STEPS]
    wait_for(lambda: rows(tmp_path)[-1][STEPS] > steps + 20_000, run)
    assert not set(pids.values()) & set(runs_of.worker_pids(tmp_path, run).values()), "all started anew"
    _, said = interrupt(tmp_path, run)
    assert f"{worker} was {'killed by SIGKILL' if number == signal.SIGKILL else 'stopped'}" in said
    axis = [row[STEPS] for row in rows(tmp_path)]
    assert axis == sorted(set(axis)), "a curve that goes back, or twice over the same steps"


HANGS = """
import time
from pathlib import Path
from srl.envs.fake import ConstantReward
class Hangs(ConstantReward):
    def step(self, action):
        if Path("hang").exists() and not Path("hangs").exists():
            Path("hangs").touch()
            time.sleep(1000)
        return super().step(action)
"""


def test_ctrl_c_ends_a_run_whose_ranks_do_not_all_get_their_batch(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGS)
    run = start(tmp_path, "--env", "hanging:Hangs")
    (tmp_path / "hang").touch()
    wait_for((tmp_path / "hangs").exists, run)
    summary, _ = interrupt(tmp_path, run)
    assert summary["reason"] == "interrupted"
    assert len(list((tmp_path / "run" / "checkpoints" / "main").glob("step_*"))) == 1


SLOW = """
import os, time
from pathlib import Path
from srl.envs.fake import ConstantReward
class Slow(ConstantReward):
    def step(self, action):
        try:
            Path("slow").symlink_to(str(os.getpid()))
        except FileExistsError:
            pass
        if os.readlink("slow") == str(os.getpid()):
            time.sleep(0.02)
        return super().step(action)
"""


def test_a_rank_that_waits_for_another_ones_batch_lives(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    run = start(
        tmp_path, "--env", "slow:Slow", "--set", "stall_seconds=2", "--set", "restarts.limit=0", log_every=UPDATE
    )
    row = wait_for(lambda: rows(tmp_path)[-1] if len(rows(tmp_path)) > 2 else None, run)
    assert row["time/seconds"] / row["train/version"] > 2, "every batch took longer than a stall"
    interrupt(tmp_path, run)


def test_an_actor_is_replaced_and_its_own_trainer_lends_to_it_again(tmp_path: Path) -> None:
    run = start(tmp_path, "--max-lag", "1")
    for actor in ("actor-main-0", "actor-main-1"):
        restarts = rows(tmp_path)[-1]["run/restarts"]
        os.kill(runs_of.worker_pids(tmp_path, run)[actor], signal.SIGKILL)
        wait_for(lambda restarts=restarts: rows(tmp_path)[-1]["run/restarts"] > restarts, run)
        steps = rows(tmp_path)[-1][STEPS]
        wait_for(lambda steps=steps: rows(tmp_path)[-1][STEPS] > steps + 10_000, run)
    interrupt(tmp_path, run)
