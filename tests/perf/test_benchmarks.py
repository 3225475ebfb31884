"""The measurements across processes and hosts still run; what they measure in a moment says nothing."""

import json
import subprocess
import sys
from pathlib import Path

from tests.hosts import ROOT, Hosts


def run(*words: str) -> str:
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_network_edges_are_measured_beside_bare_zeromq() -> None:
    with Hosts(1):
        pass  # skips where there can be no hosts
    rows = json.loads(run("perf/wire.py", "--json", "--rounds", "1", "--seconds", "0.01"))
    assert {(row["edge"], row["curve"]) for row in rows} >= {("train", True), ("act", True)}
    assert all(row["ratio"] > 0 for row in rows)


def test_the_processor_time_of_a_step_is_measured(tmp_path: Path) -> None:
    words = ["--counts", "2", "--edges", "act=shm, one host", "--warmup", "0.1", "--seconds", "1"]
    run("perf/scaling.py", "edges", *words, "--results", str(tmp_path / "found.json"))
    (row,) = json.loads((tmp_path / "found.json").read_text())["edges"].values()
    assert row["steps_per_second"] > 0
    assert row["cpu_us"]["actor"] > 0
    assert all(us > 0 for us in row["inside"].values())
