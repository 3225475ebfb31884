"""Learning while things break: environments that fail in every way, workers that die again and again."""

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import srl
from srl.experiment import Faults
from srl.metrics import STEPS, read_rows
from srl.recipes.ppo import ppo
from tests import runs_of

pytestmark = pytest.mark.learning
CHANCES = {"raises": 1e-3, "hangs": 1e-4, "aborts": 1e-4}
SOAK_SECONDS = float(os.environ.get("SRL_SOAK_SECONDS", "600"))


def test_cartpole_that_raises_hangs_and_aborts_is_solved(tmp_path: Path) -> None:
    log = tmp_path / "faults.log"
    experiment = ppo("srl.envs.fake_faults:FaultyCartPole", seed=1, learning_rate=2.5e-3, anneal=True, steps=500_000)
    actors = replace(
        experiment.actors["main"],
        env_kwargs={"log": str(log), **CHANCES},
        isolate=True,
        faults=Faults(limit=100_000, step_seconds=0.5),
    )
    experiment = replace(experiment, actors={"main": actors}, stop=replace(experiment.stop, reward=475.0))
    summary = srl.train(experiment, runs_folder=tmp_path, quiet=True).summary
    assert summary["ep_rew_mean"] >= 475
    injected = log.read_text().split()
    # The actor may have met some more after the trainer had finished.
    assert 0 <= len(injected) - summary["env_restarts"] <= 16, (len(injected), summary["env_restarts"])
    assert set(injected) == set(CHANCES)


def test_a_run_goes_on_while_random_workers_die(tmp_path: Path) -> None:
    words = ["--act", "shm", "--actors", "2", "--policy-workers", "2", "--max-lag", "1", "--no-compile"]
    settings = ["--set", "restarts.limit=1000", "--set", "log_every=5000", "--set", "checkpoint_every=50_000"]
    run = runs_of.start(tmp_path, "ppo", *words, *settings, *runs_of.FOREVER[:4])
    runs_of.wait_until_training(tmp_path, run)
    chance, before, held = random.Random(1), runs_of.shared_memory(), []
    until = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < until:
        workers = runs_of.worker_pids(tmp_path, run)
        name = chance.choice(sorted(set(workers) - {"trainer-main-0"}))
        os.kill(workers[name], chance.choice([signal.SIGKILL, signal.SIGSTOP]))
        time.sleep(10)
        assert run.poll() is None, run.communicate()
        control = psutil.Process(run.pid)
        held.append((control.num_fds(), control.memory_info().rss / 2**20))
    rows = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "time/seconds" in row]
    assert rows[-1]["lag/max"] <= 1
    assert rows[-1]["rollout/ep_rew_mean"] > 100
    assert rows[-1][STEPS] > 100 * SOAK_SECONDS
    half = len(held) // 2
    assert held[-1][0] <= held[half][0] + 4, "descriptors grow"
    assert held[-1][1] <= held[half][1] + 16, "memory grows"
    processes = runs_of.family(run)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=20)
    runs_of.assert_gone(processes)
    assert runs_of.shared_memory() <= before
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["restarts"] >= SOAK_SECONDS / 10 / 2
