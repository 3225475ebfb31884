"""Processor time that the parts of a program spend, counted inside of it and read from outside.

    part = counting("act", part, folder)  -->  folder/PID: three numbers in shared memory  -->  spent(folder)

Programs of other virtual environments are counted in the same way, so this module needs the standard library alone.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARTS = ("env", "act", "train")
_counters: dict[int, Any] = {}


def counting(part: str, call: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """The same call, whose thread's processor time is added to a part; nothing is counted without a folder."""
    if not folder:
        return call
    at = PARTS.index(part)

    def counted(*args: Any, **named: Any) -> Any:
        begun = time.thread_time_ns()
        try:
            return call(*args, **named)
        finally:
            _counter(folder)[at] += time.thread_time_ns() - begun

    return counted


def _counter(folder: str) -> Any:
    """This process's numbers; made here, because who forks hands its own on."""
    pid = os.getpid()
    if pid not in _counters:
        with (Path(folder) / str(pid)).open("w+b") as file:
            file.truncate(8 * len(PARTS))
            _counters[pid] = memoryview(mmap.mmap(file.fileno(), 8 * len(PARTS))).cast("q")
    return _counters[pid]


def spent(folder: Path) -> dict[str, float]:
    """Seconds of all processes together."""
    numbers = [memoryview(path.read_bytes()).cast("q") for path in folder.iterdir() if path.stat().st_size]
    return {part: sum(one[at] for one in numbers) / 1e9 for at, part in enumerate(PARTS)}
