"""Where the time of a step goes: what each worker does in a run, in microseconds of its time per step trained on.

python perf/hotpath.py w1 w2 [--seconds S]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import srl
from srl.experiment import Stop
from srl.metrics import STEPS, read_rows
from srl.recipes.workloads import WORKLOADS, workload

WARMUP = 15.0


def table(name: str, seconds: float) -> list[str]:
    """One line for each thing that a kind of worker does."""
    experiment = replace(workload(name), stop=Stop(seconds=WARMUP + seconds))
    with tempfile.TemporaryDirectory() as folder:
        result = srl.train(experiment, runs_folder=folder, quiet=True)
        rows = [row for row in read_rows(result.path / "metrics.jsonl") if row.get("time/seconds", 0) > WARMUP]
    first, last = rows[0], rows[-1]
    speed = (last[STEPS] - first[STEPS]) / (last["time/seconds"] - first["time/seconds"])
    lines = [
        f"{name}: {speed:,.0f} steps/s; {result.summary['bound']}",
        "| worker | does | us per step |",
        "|---|---|---|",
    ]
    for key in sorted(key for key in last if key.startswith("perf/")):
        _, kind, phase = key.split("/")
        share = statistics.mean(row.get(key, 0.0) for row in rows)
        lines.append(f"| {_said(experiment, kind)} | {phase} | {share * _count(experiment, kind) * 1e6 / speed:.2f} |")
    return lines


def _count(experiment: Any, kind: str) -> int:
    return experiment.actors["main"].count if kind == "actor" else 1


def _said(experiment: Any, kind: str) -> str:
    count = _count(experiment, kind)
    return f"{count} {kind}s together" if count > 1 else kind


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=["w1", "w2"], choices=[*WORKLOADS], metavar="WORKLOAD")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    for name in options.workloads:
        print("\n".join(table(name, options.seconds)), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.exit(main())
