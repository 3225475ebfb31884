"""Clusters of the tests are real, may lose hosts and get them back, and leave nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster import LOOPBACK, Cluster
from tests.hosts import ROOT, Hosts

pytest.importorskip("ray")

EVERYWHERE = """
import json
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

@ray.remote(num_cpus=1)
class Where:
    def address(self):
        return ray.util.get_node_ip_address()

nodes = [node for node in ray.nodes() if node["Alive"]]
actors = [Where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n["NodeID"], False)).remote() for n in nodes]
print(json.dumps(sorted(ray.get([actor.address.remote() for actor in actors]))))
"""
ALIVE = """
import json, sys, time
until = time.monotonic() + 20
while (alive := sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])) != WANTED:
    assert time.monotonic() < until, alive
    time.sleep(0.05)
"""


def left_of(folder: Path) -> list[psutil.Process]:
    """Processes that name this folder, or work below it."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in " ".join(process.cmdline()) or process.cwd().startswith(str(folder)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_cluster_of_one_on_the_loopback() -> None:
    shared = set(os.listdir("/dev/shm"))
    with Cluster(cpus=3) as cluster:
        assert json.loads(cluster.python(0, EVERYWHERE)) == [LOOPBACK]
        assert cluster.python(0, "print(ray.cluster_resources()['CPU'])") == "3.0\n"
        assert left_of(cluster.folder)
    assert left_of(cluster.folder) == []
    assert not cluster.folder.exists()
    assert set(os.listdir("/dev/shm")) <= shared


def test_actors_on_two_hosts_and_a_host_that_dies_and_comes_back() -> None:
    with Hosts(2) as hosts, Cluster(hosts) as cluster:
        both = [hosts.address(0), hosts.address(1)]
        assert json.loads(cluster.python(0, EVERYWHERE)) == both
        cluster.kill_host(1)
        killed = time.monotonic()
        cluster.python(0, ALIVE.replace("WANTED", repr(both[:1])))
        assert time.monotonic() - killed < 15
        cluster.start_host(1)
        cluster.python(1, ALIVE.replace("WANTED", repr(both)))
        assert json.loads(cluster.python(1, EVERYWHERE)) == both
    assert left_of(cluster.folder) == []


def test_who_has_no_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0" * 64)
    with Cluster() as cluster:
        ask = [str(Path(sys.executable).parent / "ray"), "health-check", "--address", cluster.address]
        assert cluster.run(0, ask).wait(60) == 0
        stranger = {**cluster.environment, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
        refused = cluster.run(0, ask, env=stranger, stderr=subprocess.PIPE, text=True)
        assert "Authentication token is missing or incorrect" in refused.communicate(timeout=60)[1]
        assert refused.returncode != 0


def test_a_cluster_ends_with_the_process_that_made_it() -> None:
    code = (
        "import os, signal; from tests.cluster import Cluster; cluster = Cluster().__enter__();"
        "print(cluster.folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    maker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    printed, _ = maker.communicate(timeout=60)
    assert maker.returncode == -signal.SIGKILL
    folder = Path(printed.strip())
    until = time.monotonic() + 20
    while left := left_of(folder):
        assert time.monotonic() < until, left
        time.sleep(0.1)
    assert folder.exists()
    with Cluster():
        assert not folder.exists()
