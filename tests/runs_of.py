"""Starting real runs in processes of their own, and looking at what they leave behind."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

FOREVER = ["--steps", "1e9", "--stop-at-reward", "1e9", "--no-compile"]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`srl train` in a process of its own."""
    command = [sys.executable, "-m", "srl.cli", "train", *words, "--runs", str(folder), "--name", "run"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)


def wait_until_training(folder: Path, run: subprocess.Popen[str], seconds: float = 60.0) -> None:
    """Until the first row of metrics is there."""
    until = time.monotonic() + seconds
    metrics = folder / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until, "the run did not begin to train"
        time.sleep(0.02)


def worker_pids(folder: Path, run: subprocess.Popen[str]) -> dict[str, int]:
    """The process of each worker by its name, found through its log."""
    found = {}
    for process in psutil.Process(run.pid).children(recursive=True):
        with contextlib.suppress(OSError):
            log = Path(os.readlink(f"/proc/{process.pid}/fd/1"))
            if log.parent == folder / "run" / "logs":
                found[log.stem] = process.pid
    return found


def family(run: subprocess.Popen[str]) -> list[psutil.Process]:
    """Control and all its descendants."""
    control = psutil.Process(run.pid)
    return [control, *control.children(recursive=True)]


def shared_memory() -> set[str]:
    """Names in /dev/shm."""
    return set(os.listdir("/dev/shm"))


def assert_gone(processes: list[psutil.Process], seconds: float = 5.0) -> None:
    """Every one of these processes ends."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    alive = [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]
    assert not alive, f"left behind: {alive}"


def wait_for(what, run: subprocess.Popen[str], seconds: float):
    """What becomes true in time, while the run lives."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found
