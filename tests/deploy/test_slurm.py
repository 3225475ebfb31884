"""The Slurm script brings Ray up on all nodes, runs beside the head, and leaves nothing.

There is no Slurm here: `srun` and `scontrol` are small stand-ins, nodes are namespaces, and what the script starts in
place of `srl` asks Ray what it sees.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import ROOT, Hosts

pytest.importorskip("ray")

SCRIPT = ROOT / "deploy" / "slurm.sh"
SCONTROL = """#!/bin/sh
test "$1 $2" = "show hostnames" && echo "$3" | tr , '\\n'
"""
SRUN = f"""#!/bin/sh
exec {sys.executable} {ROOT}/tests/deploy/srun.py "$@"
"""
# In place of srl: says what it got and what Ray has, then ends with code 3, or waits for SIGTERM and ends with code 4.
SRL = f"""#!{sys.executable}
import json, os, signal, sys
import ray
words = sys.argv[1:]
ray.init(words[words.index("--address") + 1], log_to_driver=False, configure_logging=False)
seen = {{"words": words, "nodes": len(ray.nodes()), "cpus": ray.cluster_resources()["CPU"]}}
print("SEEN", json.dumps(seen), flush=True)
if "--wait" in words:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(4))
    print("WAITING", flush=True)
    signal.pause()
sys.exit(3)
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as two:
        yield two


def sbatch(hosts: Hosts, folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    """The script as Slurm starts it: on the first node, with the job's environment."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in {"scontrol": SCONTROL, "srun": SRUN, "srl": SRL}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    job = {
        "PATH": f"{tools}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "first,second",
        "SLURM_CPUS_PER_TASK": "3",
        "NAMESPACES": f"{hosts.name(0)},{hosts.name(1)}",
        "WAIT": "60",
    }
    popen = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder}
    return hosts.run(0, ["bash", str(SCRIPT), *words], env={**os.environ, **job, **more}, **popen)


def seen(printed: str) -> dict:
    (line,) = [line for line in printed.splitlines() if line.startswith("SEEN ")]
    return json.loads(line.removeprefix("SEEN "))


def assert_nothing_is_left(hosts: Hosts) -> None:
    until = time.monotonic() + 10
    while left := hosts.pids(0) + hosts.pids(1):
        assert time.monotonic() < until, [Path(f"/proc/{pid}/cmdline").read_text() for pid in left]
        time.sleep(0.1)
    assert list(Path("/tmp").glob(f"srl-ray-{os.getpid()}-*")) == []


def test_a_job_has_all_nodes_and_ends_with_the_code_of_its_run(hosts: Hosts, tmp_path: Path) -> None:
    job = sbatch(hosts, tmp_path, "ppo", "--env", "ALE/Pong-v5")
    printed, _ = job.communicate(timeout=120)
    assert job.returncode == 3, printed
    words = seen(printed)["words"]
    port = 20000 + os.getpid() % 5000
    ray = ["--launcher", "ray", "--address", f"{hosts.address(0)}:{port}"]
    name = f"slurm-{os.getpid()}"
    assert words == ["train", "ppo", "--env", "ALE/Pong-v5", "--runs", "runs", *ray, "--name", name]
    assert (seen(printed)["nodes"], seen(printed)["cpus"]) == (2, 6.0)
    assert_nothing_is_left(hosts)


def test_a_job_whose_time_is_up_lets_its_run_end_and_goes_on_when_requeued(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "shared" / "pong").mkdir(parents=True)
    again = {"SLURM_RESTART_COUNT": "1", "RUNS": "shared", "NAME": "pong", "INTERFACE": "eth0"}
    job = sbatch(hosts, tmp_path, "ppo", "--wait", **again)
    assert job.stdout is not None
    printed = ""
    while "WAITING" not in printed:
        line = job.stdout.readline()
        assert line, printed
        printed += line
    job.send_signal(signal.SIGTERM)
    rest, _ = job.communicate(timeout=60)
    assert job.returncode == 4, printed + rest
    assert seen(printed)["words"][-2:] == ["--resume", "pong"]
    assert_nothing_is_left(hosts)


def test_the_script_is_free_of_what_shellcheck_knows() -> None:
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([shellcheck, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
