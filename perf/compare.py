"""SRL beside its peers, on the same workloads, in one run: the table and the picture of docs/performance.md.

    python perf/compare.py                          every workload, every peer; hours
    python perf/compare.py w2 --peers cleanrl sb3   one workload, two peers
    python perf/compare.py --draw                   table and picture again, from the figures of the last run

    round 1:  ours, peer, peer, ...    round 2:  ours, peer, ...    round 3:  ...        medians over rounds

Programs run one at a time, interleaved, under a lock, so that what else the machine does hits all of them alike. Each
peer runs its best variant: all that peers.toml names are tried once, and the fastest is measured. The roofline of each
workload is measured in the same run. Peers are installed by perf/peers/install.py.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from roofline import roofline  # noqa: E402 the two lines above let it be found from any folder

from srl.bench import Figures, measure  # noqa: E402
from srl.errors import UserError  # noqa: E402
from srl.recipes.workloads import WORKLOADS, workload  # noqa: E402

RESULTS = HERE / "results.json"
SHOWN = ("w1", "w2", "w2e1", "w3", "w3e1", "w5", "w5e1")
FRAMES = {"w2": 4, "w2e1": 4, "w5": 4, "w5e1": 4}
"""Frames of the world in one step, where it is not one."""


@dataclass(frozen=True)
class Program:
    """Something that trains a workload and says how far it is."""

    key: str
    name: str
    variants: list[list[str]]
    """Commands to choose from."""
    differs: str = ""
    """What could not be made as the workload says."""


def ours(name: str) -> list[Program]:
    """SRL; on CartPole also with the environment that it takes by itself."""
    names = {"w1": {"w1": "SRL", "w1v": "SRL, Gymnasium's vectorised CartPole"}}.get(name, {name: "SRL"})
    return [Program(key, said, [[sys.executable, "-m", "srl.bench", key]]) for key, said in names.items()]


def peers(name: str, wanted: list[str] | None, folder: Path) -> list[Program]:
    """The peers that can do this workload and are installed."""
    found: list[Program] = []
    for key, peer in tomllib.loads((HERE / "peers" / "peers.toml").read_text()).items():
        if name not in peer or (wanted is not None and key not in wanted):
            continue
        python = folder / key / "bin" / "python"
        if not python.exists():
            print(f"{peer['name']} is not installed: python perf/peers/install.py {key}", flush=True)
            continue
        start = [str(python), str(HERE / "peers" / peer["runner"]), name]
        variants = [[*start, *options] for options in peer[name]["variants"]]
        found.append(Program(key, peer["name"], variants, peer[name].get("differs", "")))
    return found


@contextmanager
def alone() -> Iterator[None]:
    """Nobody else who asks measures at the same time."""
    with (Path(tempfile.gettempdir()) / "srl-bench.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The medians of every program on one workload."""
    programs = [*ours(name), *peers(name, options.peers, options.folder)]
    chosen = {program.key: _fastest(program, options) for program in programs}
    rounds: dict[str, list[Figures]] = {program.key: [] for program in programs}
    for turn in range(options.repeats):
        for program in programs:
            figures = _measured(chosen[program.key], options.warmup, options.seconds)
            if figures is not None:
                rounds[program.key].append(figures)
                print(f"  {name} round {turn + 1}: {program.name:40} {figures.steps_per_second:10,.0f}", flush=True)
    rows = [_row(program, chosen[program.key], rounds[program.key], FRAMES.get(name, 1)) for program in programs]
    return {"rows": [row for row in rows if row], "roofline": roofline(name), "about": workload(name).name}


def _fastest(program: Program, options: argparse.Namespace) -> list[str]:
    if len(program.variants) == 1 or options.first:
        return program.variants[0]
    tried = [(_measured(command, options.warmup, options.seconds / 2), command) for command in program.variants]
    return max(tried, key=lambda pair: pair[0].steps_per_second if pair[0] else 0.0)[1]


def _measured(command: list[str], warmup: float, seconds: float) -> Figures | None:
    with alone():
        try:
            return measure(command, warmup=warmup, seconds=seconds, environment={"PYTHONPATH": str(ROOT)})
        except UserError as error:
            print(f"  left out: {error}", flush=True)
            return None


def _row(program: Program, command: list[str], rounds: list[Figures], frames: int) -> dict[str, Any] | None:
    if not rounds:
        return None
    speeds = [figures.steps_per_second for figures in rounds]
    options = command[3:] if program.key not in WORKLOADS else []
    return {
        "key": program.key,
        "name": program.name,
        "options": " ".join(options),
        "differs": program.differs,
        "steps_per_second": statistics.median(speeds),
        "slowest": min(speeds),
        "fastest": max(speeds),
        "frames_per_second": frames * statistics.median(speeds),
        "cpu_us_per_step": 1e6 * statistics.median(figures.cpu_per_step for figures in rounds),
        "memory": statistics.median(figures.memory for figures in rounds),
        "rounds": len(rounds),
    }


def main() -> int:
    """Measure, write the figures down, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(SHOWN)}; all by default")
    parser.add_argument("--peers", nargs="+", metavar="PEER", help="only these")
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers", help="where peers are installed [.peers]")
    for flag, default, text in (("--seconds", 20.0, "of each window"), ("--warmup", 10.0, "before each window")):
        parser.add_argument(flag, type=float, default=default, help=f"seconds {text} [{default:.0f}]")
    parser.add_argument("--repeats", type=int, default=3, help="rounds [3]")
    parser.add_argument("--first", action="store_true", help="take each peer's first variant, which was best so far")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw what was measured last")
    options = parser.parse_args()
    results = msgspec.json.decode(RESULTS.read_bytes()) if RESULTS.exists() else {}
    for name in [] if options.draw else options.workloads or SHOWN:
        results[name] = compare(name, options)
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    from draw import draw

    draw(results, ROOT / "docs")
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
