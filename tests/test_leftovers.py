"""Starting and stopping again and again leaves nothing behind in the process that does it."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import srl
from srl.recipes.ppo import ppo
from tests import runs_of

SHORT = {"steps": 64, "rollout": 16, "envs": 4, "minibatches": 1, "epochs": 1}


def held() -> tuple[int, int]:
    """Open descriptors and child processes of this process."""
    return len(os.listdir("/proc/self/fd")), len(psutil.Process().children(recursive=True))


def cycles(run: Callable[[], object], count: int) -> list[float]:
    """Resident MiB of this process after each of so many cycles."""
    sizes = []
    for _ in range(count):
        run()
        sizes.append(psutil.Process().memory_info().rss / 2**20)
    return sizes


@pytest.mark.parametrize(("launcher", "count"), [("serial", 50), ("local", 8)])
def test_cycles_of_start_and_stop_leak_nothing(tmp_path: Path, launcher: str, count: int) -> None:
    def run() -> None:
        srl.train(ppo(**SHORT, act="shm"), launcher=launcher, runs_folder=tmp_path, quiet=True)

    run()
    before, shared = held(), runs_of.shared_memory()
    sizes = cycles(run, count)
    assert held() == before
    assert runs_of.shared_memory() == shared
    # Memory settles: the second half grows by less than a few allocator arenas.
    assert sizes[-1] - sizes[count // 2] < 8, sizes


@pytest.mark.learning
def test_fifty_cycles_of_processes_leak_nothing(tmp_path: Path) -> None:
    test_cycles_of_start_and_stop_leak_nothing(tmp_path, "local", 50)


def test_waiting_workers_use_no_processor_time(tmp_path: Path) -> None:
    # Each step of the environment sleeps, so everyone else waits for the kernel nearly all the time.
    words = ["ppo", "--env", "srl.envs.fake:Slow", "--set", "actors.main.env_kwargs={seconds: 0.5}", "--envs", "2"]
    run = runs_of.start(tmp_path, *words, "--act", "shm", "--rollout", "1000", "--actors", "1")
    try:
        pids = _wait_for_workers(tmp_path, run)
        idle = [psutil.Process(pids[name]) for name in ("trainer-main-0", "policy-main-0")]
        before = [sum(process.cpu_times()[:2]) for process in idle]
        psutil.Process(run.pid).cpu_percent()
        seconds = 4.0
        psutil.cpu_percent(interval=seconds)
        used = [sum(process.cpu_times()[:2]) - start for process, start in zip(idle, before, strict=True)]
        assert max(used) / seconds <= 0.01, used
    finally:
        run.terminate()
        run.communicate(timeout=20)


def _wait_for_workers(folder: Path, run) -> dict[str, int]:
    """Processes of the workers, once all of them are in their loops."""
    import time

    until = time.monotonic() + 60
    while time.monotonic() < until:
        pids = runs_of.worker_pids(folder, run) if (folder / "run").exists() else {}
        if len(pids) == 3 and all(psutil.Process(pid).status() == "sleeping" for pid in pids.values()):
            time.sleep(1)
            return pids
        time.sleep(0.1)
    raise AssertionError("the workers did not come to rest")
