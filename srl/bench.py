"""Measuring: how fast a program trains, what it costs in processor time and memory, whoever wrote it.

    program --"steps N T" lines--> measure --> Figures

A program that can be measured prints one line for each update: the steps trained on so far, and the seconds on a clock
of its own when the optimiser had finished with them. Starting and warming up lie outside the window. Run as a program
itself, this module trains a workload of SRL's and prints these lines.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from srl import processes
from srl.control import train
from srl.errors import UserError
from srl.metrics import STEPS
from srl.recipes.workloads import workload

START_SECONDS = 300.0
"""How long a program may take to its first update."""
SILENCE_SECONDS = 120.0
"""How long it may take from one update to the next."""
GRACE_SECONDS = 5.0
WORD = b"steps "


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was measured in the window."""

    steps_per_second: float
    cpu_per_step: float
    """Processor seconds of the program and all its children, per step."""
    memory: float
    """MiB of all processes at the window's end, what is shared counted once."""
    seconds: float
    """Length of the window."""
    updates: int
    """Updates in the window."""


def measure(
    command: Sequence[str],
    *,
    warmup: float,
    seconds: float,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> Figures:
    """Run a program until the window after its warm-up is over, then end it and all its children."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
            preexec_fn=partial(processes.die_with, os.getpid()),
        )
        try:
            return _window(_Updates(process, errors), process.pid, warmup, seconds)
        finally:
            end(process)


def _window(updates: _Updates, pid: int, warmup: float, seconds: float) -> Figures:
    first = updates.next(START_SECONDS)
    while (opened := updates.next(SILENCE_SECONDS)).at < first.at + warmup:
        pass
    cpu = processes.cpu_seconds(processes.family(pid))
    count = 1
    while (last := updates.next(SILENCE_SECONDS)).at < opened.at + seconds:
        count += 1
    family = processes.family(pid)
    steps, taken = last.steps - opened.steps, last.at - opened.at
    return Figures(
        steps_per_second=steps / taken,
        cpu_per_step=(processes.cpu_seconds(family) - cpu) / steps,
        memory=sum(map(processes.memory, family)) / 2**20,
        seconds=taken,
        updates=count,
    )


@dataclass(frozen=True)
class _Update:
    steps: int
    at: float


class _Updates:
    """The updates that a program tells of, one at a time."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self._errors = errors
        self._out = process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._out, selectors.EVENT_READ)
        self._rest = b""
        self._ready: list[_Update] = []

    def next(self, patience: float) -> _Update:
        until = time.monotonic() + patience
        while not self._ready:
            if not self._selector.select(max(0.0, until - time.monotonic())):
                raise UserError(f"{self._name} made no update for {patience:.0f} s{self._said()}")
            data = os.read(self._out, 65536)
            if not data:
                code = self._process.wait()
                raise UserError(f"{self._name} ended with code {code} before it was measured{self._said()}")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._ready = [_Update(int(w[1]), float(w[2])) for w in map(bytes.split, lines) if w[:1] == [WORD.strip()]]
        return self._ready.pop(0)

    @property
    def _name(self) -> str:
        return " ".join(map(str, self._process.args)) if isinstance(self._process.args, list) else "the program"

    def _said(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()[-20:]
        return ":\n" + "\n".join(lines) if lines else ""


def end(process: subprocess.Popen[Any]) -> None:
    """End a program and all that descends from it."""
    pids = processes.family(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids:
            _signal(pid, number)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        until = time.monotonic() + GRACE_SECONDS
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
    if process.stdout:
        process.stdout.close()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def measure_workload(name: str, *, warmup: float, seconds: float) -> Figures:
    """SRL on a workload of its own."""
    workload(name)
    return measure([sys.executable, "-m", "srl.bench", name], warmup=warmup, seconds=seconds)


def said(name: str, figures: Figures) -> str:
    """The figures for people."""
    return (
        f"{name}: {figures.steps_per_second:,.0f} steps/s, {figures.cpu_per_step * 1e6:,.0f} us of processor time per "
        f"step, {figures.memory:,.0f} MiB; {figures.updates} updates in {figures.seconds:.0f} s"
    )


def as_json(name: str, figures: Figures) -> str:
    """The figures for programs."""
    return msgspec.json.encode({"workload": name, **asdict(figures)}).decode()


class Printer:
    """A sink that says to whoever measures how far the training is."""

    def write(self, row: dict[str, Any]) -> None:
        """One update, where the row is one."""
        if "time/seconds" in row:
            print("steps", row[STEPS], row["time/seconds"], flush=True)

    def close(self) -> None:
        """Nothing is held."""


def main(name: str) -> None:
    """Train a workload until someone ends this process."""
    with tempfile.TemporaryDirectory() as folder:
        train(workload(name), runs_folder=folder, quiet=True, sinks=[Printer()])


if __name__ == "__main__":
    main(sys.argv[1])
