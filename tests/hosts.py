"""Several hosts on one machine: network namespaces on a bridge, whose links can be cut, mended and shaped.

    this process  10.199.x.254 --- bridge --- 10.199.x.1  host 0
                                          --- 10.199.x.2  host 1   ...

Each set of hosts takes a number x that no living process has. What a killed process left of that number is removed
first, so nothing piles up.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


def ip(*words: str) -> str:
    """What `ip` answers."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """So many hosts; a host is named by its number. Each has `lo`, and `eth0` with a default route to this process."""

    def __init__(self, count: int):
        self.count = count
        self._started = contextlib.ExitStack()
        self._wires: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Hosts":
        self._need_namespaces()
        self.number, self._claim = _claim()
        self.bridge = f"srl{self.number}"
        self.subnet = f"10.199.{self.number}"
        self.outside = f"{self.subnet}.254"
        try:
            _sweep()
            _remove(self.number)
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for host in list(self._wires):
                self._unwire(host)
            _remove(self.number)
            self._started.close()
        finally:
            self._claim.close()

    def name(self, host: int) -> str:
        """Of its namespace, and of the end of its link on our side."""
        return f"{self.bridge}-{host}"

    def address(self, host: int) -> str:
        return f"{self.subnet}.{host + 1}"

    def inside(self, host: int, argv: list[str]) -> list[str]:
        """The command that becomes `argv` on that host: nsenter replaces itself, the process id stays."""
        return ["nsenter", f"--net=/run/netns/{self.name(host)}", "--", *argv]

    def run(self, host: int, argv: list[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on a host. It is waited for, and its pipes are closed, when the hosts end."""
        return self._started.enter_context(subprocess.Popen(self.inside(host, argv), **popen))

    def pids(self, host: int) -> list[int]:
        """Every process on a host, whoever started it."""
        return _pids(self.name(host))

    def kill(self, host: int) -> None:
        """SIGKILL to every process on a host, until none is left. Its link stays: peers see connections reset."""
        _kill(self.name(host))

    def cut(self, host: int) -> None:
        """From now on frames to and from a host vanish. Nobody is told, as when a switch between two hosts fails."""
        ip("link", "set", self._port(host), "nomaster")

    def mend(self, host: int) -> None:
        """Frames pass again."""
        ip("link", "set", self._port(host), "master", self.bridge)

    def shape(self, host: int, delay_ms: float = 0, loss_percent: float = 0, mbit: float = 0) -> None:
        """What each frame to or from a host meets: so much delay, such a risk to be lost, this rate (0: any).

        A process moves the frames, because many kernels of virtual machines have no netem.
        """
        self.straighten(host)
        end, port = self.name(host), f"{self.name(host)}p"
        ip("link", "add", port, "type", "veth", "peer", "name", f"{end}w")
        # Frames as they are on a real wire, not blocks of 64 KiB that would be lost as one.
        ip("-n", end, "link", "set", "eth0", "gso_max_segs", "1")
        ip("link", "set", port, "gso_max_segs", "1")
        for name in (end, f"{end}w"):
            # Our own kernel must not answer for what only passes.
            ip("link", "set", name, "nomaster", "arp", "off", "addrgenmode", "none", "up")
        command = [sys.executable, "-m", "tests.wire", end, f"{end}w", str(delay_ms), str(loss_percent), str(mbit)]
        wire = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._wires[host] = wire
        assert wire.stdout is not None
        assert wire.stdout.readline() == b"ready\n"
        ip("link", "set", port, "master", self.bridge, "up")

    def straighten(self, host: int) -> None:
        """The link as it was before `shape`."""
        if host in self._wires:
            self._unwire(host)
            ip("link", "del", f"{self.name(host)}p")
            ip("-n", self.name(host), "link", "set", "eth0", "gso_max_segs", "65535")
            ip("link", "set", self.name(host), "arp", "on", "master", self.bridge)

    def _port(self, host: int) -> str:
        """The interface that ties a host to the bridge."""
        return f"{self.name(host)}p" if host in self._wires else self.name(host)

    def _unwire(self, host: int) -> None:
        self._wires.pop(host).communicate()

    def _need_namespaces(self) -> None:
        if os.geteuid():
            pytest.skip("several hosts on one machine need root")
        if missing := [tool for tool in ("ip", "nsenter") if not shutil.which(tool)]:
            pytest.skip(f"several hosts on one machine need {' and '.join(missing)}")
        probe = f"srl-try-{os.getpid()}"
        try:
            ip("netns", "add", probe)
            ip("-n", probe, "link", "add", "probe", "type", "bridge")
            ip("-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "two")
        except OSError as error:
            pytest.skip(f"this machine makes no namespaces with bridges: {error}")
        finally:
            with contextlib.suppress(OSError):
                ip("netns", "del", probe)

    def _make(self) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.outside}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for host in range(self.count):
            name = self.name(host)
            ip("netns", "add", name)
            ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", name, "master", self.bridge, "up")
            ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "via", self.outside)


def _pids(namespace: str) -> list[int]:
    return [int(pid) for pid in ip("netns", "pids", namespace).split()]


def _kill(namespace: str) -> None:
    until = time.monotonic() + 10
    while pids := _pids(namespace):
        assert time.monotonic() < until, f"processes in {namespace} do not die: {pids}"
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _claim(first: int = 0) -> tuple[int, socket.socket]:
    """The first number from here that no living process claims: a socket's name, which ends with its process."""
    for number in range(first, 256):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0srl-hosts-{number}")
        except OSError:
            claim.close()
        else:
            return number, claim
    raise OSError("all 256 numbers for hosts are taken")


def _namespaces() -> dict[str, int]:
    """The namespaces of all hosts of this machine, and their numbers."""
    found = (re.match(r"srl(\d+)-\d+\b", line) for line in ip("netns", "list").splitlines())
    return {one[0]: int(one[1]) for one in found if one}


def _remove(number: int) -> None:
    """All that has this number, whoever made it."""
    for name, its_number in _namespaces().items():
        if its_number == number:
            _kill(name)
            ip("netns", "del", name)
    # A namespace takes its interfaces with it, but the kernel does so later.
    for _, name in socket.if_nameindex():
        if re.fullmatch(rf"srl{number}(-.*)?", name):
            with contextlib.suppress(OSError):
                ip("link", "del", name)


def _sweep() -> None:
    """What killed processes left."""
    for number in set(_namespaces().values()):
        free, claim = _claim(number)
        with claim:
            if free == number:
                _remove(number)
