"""A worker that dies is replaced and the run goes on; a trainer goes on from the last checkpoint."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from srl.metrics import STEPS, read_rows
from tests import runs_of

IN_TIME = 15.0
SHAPE = ["--envs", "8", "--rollout", "32", "--actors", "2", "--ring", "2", "--minibatches", "1", "--epochs", "1"]


def wait_for(what, run: subprocess.Popen[str], seconds: float = IN_TIME):
    return runs_of.wait_for(what, run, seconds)


def rows(folder: Path) -> list[dict]:
    return [row for row in read_rows(folder / "run" / "metrics.jsonl") if "time/seconds" in row]


def pid_of(folder: Path, run: subprocess.Popen[str], worker: str) -> int | None:
    return runs_of.worker_pids(folder, run).get(worker)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    run = runs_of.start(folder, "ppo", *SHAPE, *runs_of.FOREVER, "--set", "log_every=1000", *words)
    runs_of.wait_until_training(folder, run)
    return run


def finish(folder: Path, run: subprocess.Popen[str]) -> dict:
    processes = runs_of.family(run)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=IN_TIME)
    runs_of.assert_gone(processes)
    assert run.returncode == 130, errors
    return json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize(
    ("worker", "words"),
    [
        ("actor-main-1", ["--max-lag", "0"]),
        ("actor-main-1", ["--max-lag", "2"]),
        ("actor-main-1", ["--act", "shm", "--max-lag", "1"]),
        ("policy-main-0", ["--act", "shm", "--max-lag", "1"]),
        ("policy-main-1", ["--act", "shm", "--policy-workers", "2", "--max-lag", "0"]),
        ("evaluator-eval-0", ["--eval-every", "1000"]),
    ],
)
def test_a_worker_is_replaced_and_the_run_goes_on(tmp_path: Path, worker: str, words: list[str], number: int) -> None:
    run = start(tmp_path, *words)
    for life in (1, 2):
        old = wait_for(lambda: pid_of(tmp_path, run, worker), run)
        os.kill(old, number)
        wait_for(lambda old=old: (pid_of(tmp_path, run, worker) or old) != old, run)
        wait_for(lambda life=life: rows(tmp_path)[-1]["run/restarts"] == life, run)
        steps = rows(tmp_path)[-1][STEPS]
        wait_for(lambda steps=steps: rows(tmp_path)[-1][STEPS] > steps + 5_000, run)
    summary = finish(tmp_path, run)
    assert summary["restarts"] == 2
    assert summary["lag_max"] <= int(dict(zip(words[::2], words[1::2], strict=True)).get("--max-lag", 0))


def test_an_evaluation_under_way_is_done_by_the_next_life(tmp_path: Path) -> None:
    """Training is over, and the evaluator dies in the middle of the last evaluation."""
    slow = [f"actors.{group}.env_kwargs={{seconds: {seconds}}}" for group, seconds in (("main", 0), ("eval", 0.005))]
    words = ["--env", "srl.envs.fake:Slow", "--steps", "10000", "--eval-every", "1000000", "--no-compile"]
    run = runs_of.start(tmp_path, "ppo", *SHAPE, *words, *(word for each in slow for word in ("--set", each)))
    latest = tmp_path / "run" / "checkpoints" / "main" / "latest"
    wait_for(latest.exists, run, 60)
    old = pid_of(tmp_path, run, "evaluator-eval-0")
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: (pid_of(tmp_path, run, "evaluator-eval-0") or old) != old, run)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 0, errors
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    evaluated = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "eval/mean_reward" in row]
    assert [row[STEPS] for row in evaluated] == [summary["steps"]]
    assert (summary["restarts"], summary["eval_mean_reward"]) == (1, 50.0)


def test_a_trainer_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    run = start(tmp_path, "--set", "checkpoint_every=20_000", "--act", "shm")
    latest = tmp_path / "run" / "checkpoints" / "main" / "latest"
    wait_for(latest.exists, run)
    wait_for(lambda: rows(tmp_path)[-1][STEPS] > 50_000, run)
    old = pid_of(tmp_path, run, "trainer-main-0")
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: (pid_of(tmp_path, run, "trainer-main-0") or old) != old, run)
    wait_for(lambda: rows(tmp_path)[-1]["run/restarts"] == 1, run)
    steps = rows(tmp_path)[-1][STEPS]
    wait_for(lambda: rows(tmp_path)[-1][STEPS] > steps + 20_000, run)
    finish(tmp_path, run)
    axis = [row[STEPS] for row in rows(tmp_path)]
    assert axis == sorted(set(axis)), "a curve that goes back, or twice over the same steps"
    versions = [row["train/version"] for row in rows(tmp_path)]
    assert versions == sorted(versions)


def test_a_trainer_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    run = start(tmp_path)
    os.kill(pid_of(tmp_path, run, "trainer-main-0") or 0, signal.SIGKILL)
    wait_for(lambda: rows(tmp_path)[-1:] and rows(tmp_path)[-1]["run/restarts"] == 1, run)
    finish(tmp_path, run)
    axis = [row[STEPS] for row in rows(tmp_path)]
    assert axis == sorted(set(axis)), "what was measured before is still there"


def test_a_worker_that_outgrows_its_memory_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "leaking.py").write_text(
        "from srl.envs.fake import ConstantReward\n"
        "kept = []\n"
        "class Leaks(ConstantReward):\n"
        "    def step(self, action):\n"
        "        kept.append(bytearray(100_000))\n"
        "        return super().step(action)\n"
    )
    run = start(tmp_path, "--env", "leaking:Leaks", "--set", "restarts.memory=600")
    wait_for(lambda: rows(tmp_path)[-1]["run/restarts"] >= 1, run, 60)
    processes = runs_of.family(run)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=IN_TIME)
    runs_of.assert_gone(processes)
    assert "MiB of memory, 600 are allowed" in errors


def test_a_worker_that_dies_again_and_again_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "aborting.py").write_text(
        "import os\n"
        "from srl.envs.fake import ConstantReward\n"
        "class Aborts(ConstantReward):\n"
        "    def step(self, action):\n"
        "        os.abort()\n"
    )
    words = ["--env", "aborting:Aborts", "--envs", "4", "--actors", "1", "--set", "restarts.limit=2"]
    run = runs_of.start(tmp_path, "ppo", *words)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 3
    assert "actor-main-0 was killed by SIGABRT" in errors.splitlines()[-1]
    assert "3 times in" in errors.splitlines()[-1]
