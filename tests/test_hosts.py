"""Hosts that are namespaces behave as hosts do, and nothing of them stays."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.hosts import Hosts, ip

# A server that answers every message with itself.
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("ready", flush=True)
    while True:
        one, _ = server.accept()
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := one.recv(1 << 16):
            one.sendall(data)
"""
# Says whether another host answers.
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=5) as one:
    one.sendall(b"ping")
    assert one.recv(4) == b"ping"
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as two:
        yield two


def serve(hosts: Hosts, host: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", ECHO, hosts.address(host)]
    server = hosts.run(host, argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    return server


def connected(hosts: Hosts, host: int) -> socket.socket:
    """A connection from this process to the server of a host."""
    one = socket.create_connection((hosts.address(host), 5000), timeout=10)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one


def echo(one: socket.socket, data: bytes = b"ping") -> None:
    one.sendall(data)
    got = b""
    while len(got) < len(data):
        got += one.recv(1 << 16)
    assert got == data


def traces(hosts: Hosts) -> list[str]:
    """Namespaces and interfaces with the number of these hosts."""
    names = [line.split()[0] for line in ip("netns", "list").splitlines()] + [name for _, name in socket.if_nameindex()]
    return [name for name in names if name == hosts.bridge or name.startswith(f"{hosts.bridge}-")]


def test_hosts_reach_each_other_and_this_process_reaches_them() -> None:
    with Hosts(2) as hosts:
        server = serve(hosts, 1)
        assert hosts.pids(1) == [server.pid]
        assert hosts.pids(0) == []
        assert hosts.run(0, [sys.executable, "-c", ASK, hosts.address(1)]).wait(10) == 0
        with connected(hosts, 1) as one:
            echo(one)
        assert traces(hosts)
    assert server.wait(5) == -signal.SIGKILL
    assert traces(hosts) == []


def test_what_is_cut_comes_back_on_the_same_connection(hosts: Hosts) -> None:
    serve(hosts, 0)
    with connected(hosts, 0) as one:
        echo(one)
        hosts.cut(0)
        one.settimeout(0.5)
        one.sendall(b"late")
        with pytest.raises(TimeoutError):
            one.recv(4)
        hosts.mend(0)
        one.settimeout(20)
        assert one.recv(4) == b"late"


def test_a_killed_host_resets_its_connections_and_serves_again(hosts: Hosts) -> None:
    server = serve(hosts, 1)
    with connected(hosts, 1) as one:
        echo(one)
        hosts.kill(1)
        assert server.wait(5) == -signal.SIGKILL
        assert hosts.pids(1) == []
        assert one.recv(4) == b""
    serve(hosts, 1)
    with connected(hosts, 1) as one:
        echo(one)


def seconds(one: socket.socket, data: bytes = b"ping") -> float:
    start = time.monotonic()
    echo(one, data)
    return time.monotonic() - start


def test_a_shaped_link_is_late_both_ways_and_straight_again_after(hosts: Hosts) -> None:
    serve(hosts, 0)
    with connected(hosts, 0) as one:
        echo(one)
        hosts.shape(0, delay_ms=50)
        echo(one)
        assert 0.1 <= min(seconds(one) for _ in range(5)) < 0.15
        hosts.cut(0)
        one.settimeout(0.5)
        with pytest.raises(TimeoutError):
            echo(one)
        hosts.mend(0)
        one.settimeout(20)
        assert one.recv(4) == b"ping"
        hosts.straighten(0)
        assert min(seconds(one) for _ in range(5)) < 0.05


def received(one: socket.socket) -> int:
    """How many messages wait here, until none comes for half a second."""
    one.settimeout(0.5)
    count = 0
    with contextlib.suppress(TimeoutError):
        while one.recv(1):
            count += 1
    return count


def test_a_shaped_link_loses_frames_and_keeps_to_its_rate(hosts: Hosts) -> None:
    serve(hosts, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((hosts.outside, 0))
        code = "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); " + (
            "[s.sendto(b'x', (sys.argv[1], int(sys.argv[2]))) for _ in range(200)]"
        )
        hosts.shape(0, loss_percent=20)
        argv = [sys.executable, "-c", code, hosts.outside, str(one.getsockname()[1])]
        assert hosts.run(0, argv).wait(10) == 0
        assert 130 <= received(one) <= 190
    hosts.shape(0, mbit=8)
    with connected(hosts, 0) as one:
        # One way after the other: a megabyte at a megabyte per second takes a second, its echo comes meanwhile.
        assert 0.9 < seconds(one, bytes(1 << 20)) < 2.5


def test_what_a_killed_process_left_is_removed() -> None:
    code = (
        "import os, signal, subprocess; from tests.hosts import Hosts; hosts = Hosts(2).__enter__(); hosts.shape(1, 1);"
        "sleep = hosts.run(1, ['sleep', '1000'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL);"
        "print(sleep.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == -signal.SIGKILL, done.stderr
    sleeper = psutil.Process(int(done.stdout))
    with Hosts(1) as hosts:
        # Whoever next takes that number removes all that has it.
        sleeper.wait(5)
        assert sorted(traces(hosts)) == sorted([hosts.bridge, *2 * [hosts.name(0)]])
