"""A real Ray cluster for tests: a node per host of tests/hosts.py, or one node on this machine's loopback.

Ray's processes are found by their host or by their parents, never by name: other clusters of the machine live on.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.hosts import ROOT, Hosts

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Without it Ray 2.60 warns that it will change, and warnings are errors here.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# A killed host is noticed within 5 s, and a link may be cut for 30 s: after that TCP tries again only at 51 s.
HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "10",
}
# Another address than 127.0.0.1, which Ray takes as "choose one", and chooses what a machine may not reach.
LOOPBACK = "127.0.0.2"
PREFIX = "srl-cluster-"
OBJECT_STORE_BYTES = 80 << 20


class Cluster:
    """A node per host, so many CPUs each; the head is on host 0. Without hosts, one node on the loopback.

    With a count, only the first so many hosts are of the cluster.
    """

    def __init__(
        self,
        hosts: Hosts | None = None,
        cpus: int = 2,
        args: tuple[str, ...] = (),
        count: int | None = None,
        dashboard: int = 0,
    ):
        self.hosts, self.cpus, self.args = hosts, cpus, args
        self.dashboard = ["--include-dashboard=false"]
        if dashboard:
            self.dashboard = ["--include-dashboard=true", f"--dashboard-port={dashboard}"]
        self.count = count or (hosts.count if hosts else 1)
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._drivers = contextlib.ExitStack()

    def __enter__(self) -> "Cluster":
        pytest.importorskip("ray")
        _sweep()
        # Short, because the paths of Ray's sockets below it may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp"))
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.port, self._client_port = (6379, 10001) if self.hosts else (_free_port(), _free_port())
        self.address = f"{self.host_address(0)}:{self.port}"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        here = {"RAY_ADDRESS": self.address, "PYTHONPATH": path, "PATH": programs}
        self.environment = {**os.environ, **QUIET, **HEALTH, **auth, **here}
        try:
            for host in range(self.count):
                self._start(host)
            for host in range(self.count):
                self._wait(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in list(self._nodes):
            self.kill_host(host)
        self._drivers.close()
        shutil.rmtree(self.folder)

    def host_address(self, host: int) -> str:
        return self.hosts.address(host) if self.hosts else LOOPBACK

    def start_host(self, host: int) -> None:
        """Bring a node up where one was killed; to Ray it is a new node."""
        self._start(host)
        self._wait(host)

    def kill_host(self, host: int) -> None:
        """SIGKILL to every process of a host, those that are not Ray's too."""
        node = self._nodes.pop(host)
        if self.hosts:
            self.hosts.kill(host)
        elif node.poll() is None:
            _kill_family(node.pid)
        node.wait()

    def run(self, host: int, argv: list[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on a host, with what it needs to find the cluster. It does not outlive the cluster."""
        popen.setdefault("env", self.environment)
        if self.hosts:
            return self.hosts.run(host, argv, **popen)
        process = self._drivers.enter_context(subprocess.Popen(argv, **popen))
        self._drivers.callback(process.kill)
        return process

    def python(self, host: int, code: str, seconds: float = 60) -> str:
        """What a driver on a host prints: it is connected already, and warnings are errors to it."""
        connect = (
            f"import ray; ray.init(address={self.address!r}, _node_ip_address={self.host_address(host)!r}, "
            "log_to_driver=False, configure_logging=False)\n"
        )
        argv = [sys.executable, "-W", "error", "-c", connect + code]
        driver = self.run(host, argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        printed, errors = driver.communicate(timeout=seconds)
        assert driver.returncode == 0, errors
        return printed

    def log(self, host: int) -> Path:
        """What `ray start` said on a host."""
        return self.folder / f"{host}.log"

    def _start(self, host: int) -> None:
        head = [
            "--head", f"--port={self.port}", f"--ray-client-server-port={self._client_port}",
            *self.dashboard,
        ]  # fmt: skip
        argv = [
            *("setpriv", "--pdeathsig", "TERM", "--"),  # `ray start` ends with us, and Ray's processes with it.
            str(Path(sys.executable).parent / "ray"), "start", "--block",
            *(head if host == 0 else [f"--address={self.address}"]),
            f"--node-ip-address={self.host_address(host)}",
            f"--num-cpus={self.cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}",
            f"--temp-dir={self.folder / str(host)}", "--include-log-monitor=false", "--disable-usage-stats", *self.args,
        ]  # fmt: skip
        with self.log(host).open("wb") as log:
            # `ray start` refuses the address of a cluster in its environment beside --head.
            environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
            popen: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self._nodes[host] = self.hosts.run(host, argv, **popen) if self.hosts else subprocess.Popen(argv, **popen)

    def _wait(self, host: int, seconds: float = 60) -> None:
        """Until the node is up."""
        until = time.monotonic() + seconds
        while "Ray runtime started" not in (said := self.log(host).read_text()):
            assert self._nodes[host].poll() is None, f"`ray start` ended on host {host}:\n{said}"
            assert time.monotonic() < until, f"`ray start` took too long on host {host}:\n{said}"
            time.sleep(0.02)


def _sweep() -> None:
    """Folders of processes that were killed."""
    for folder in Path("/tmp").glob(f"{PREFIX}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(PREFIX).split("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _kill_family(pid: int) -> None:
    """SIGKILL to a process and all its descendants, parents first so that nobody is started anew."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _, alive = psutil.wait_procs(family[1:], timeout=10)
    assert not alive
