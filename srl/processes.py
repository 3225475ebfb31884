"""Processes as the kernel sees them: who descends from whom, who dies with whom, what each used and may use.

Linux; no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from srl.errors import UserError

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
SPARE = 32
"""Descriptors that are left for whatever else a process opens."""


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, and go at once if it has died already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def family(pid: int) -> list[int]:
    """A process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for child, parent in _parents():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for path in PROC.iterdir():
        if path.name.isdigit() and (fields := _stat(int(path.name))):
            yield int(path.name), int(fields[1])


def _stat(pid: int) -> list[str]:
    """The fields behind the name of a process, state first; none when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_stopped(pid: int) -> bool:
    """Whether someone has stopped a process, by SIGSTOP or a debugger."""
    return _stat(pid)[:1] in (["T"], ["t"])


def cpu_seconds(pids: list[int]) -> float:
    """Processor time that these processes, and the children they have buried, have used."""
    ticks = (int(ticks) for pid in pids for ticks in _stat(pid)[11:15])
    return sum(ticks) / TICKS


def memory(pid: int) -> int:
    """Bytes of memory of a process, its share of what it shares with others; 0 when it is gone."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def allow_descriptors(more: int, what: str) -> None:
    """Let this process open so many files more, if it may; a UserError says what would need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(list((PROC / "self" / "fd").glob("*"))) + more + SPARE
    if wanted > hard != resource.RLIM_INFINITY:
        raise UserError(f"{what} needs {wanted:,} file descriptors and may have {hard:,}; see ulimit -n, or take fewer")
    if wanted > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def allow_all_descriptors() -> None:
    """Let this process open as many files as it ever may."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Where there is no limit, some systems want a number.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
