"""A stranger on the network of a run finds its open ports and says there whatever can be said without its keys.

All is refused and counted, nobody crashes, training goes on, and neither memory nor descriptors are used up. A stranger
is a host of its own, and hears what the hosts of the run say to each other. `pytest -m fuzz` sends its frames over ten
times as many connections.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from srl.metrics import STEPS, read_rows
from tests.cluster import Cluster
from tests.hosts import ROOT, Hosts
from tests.stranger import WELCOME_BYTES

FRAMES = 100_000
IDLE = 2_000
OPEN = 100
"""More connections than the workers of the run have with each other."""
HEARD_BYTES = 1 << 14
"""So much of what a caller says at first is heard."""
GROWTH = 24 << 20
"""Bytes that a worker may seem to grow by: its allocator keeps some of what it once needed."""
RUN = [
    # So many threads that a host has no room for two trainers.
    *("train", "impala", "--trainers", "2", "--threads", "3", "--actors", "2", "--envs", "8", "--max-lag", "2"),
    *("--act", "net", "--policy-workers", "2", "--steps", "1e9", "--stop-at-reward", "1e9", "--no-compile"),
    *("--set", "log_every=1000", "--launcher", "ray", "--name", "run"),
]


class Tap(threading.Thread):
    """Hears all that passes on the link of a host, as whoever sits at a switch does."""

    def __init__(self, interface: str):
        super().__init__(daemon=True)
        self._flows: dict[tuple, dict[int, bytes]] = defaultdict(dict)
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self._socket.bind((interface, 0))
        self._socket.settimeout(0.2)
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        with self._socket:
            while not self._ends.is_set():
                try:
                    self._hear(self._socket.recv(1 << 17))
                except TimeoutError:
                    continue
                except OSError:
                    return  # the host is gone

    def _hear(self, frame: bytes) -> None:
        if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
            return
        ip = frame[14 : 14 + struct.unpack("!H", frame[16:18])[0]]
        tcp = ip[(ip[0] & 15) * 4 :]
        ports, data = struct.unpack("!HHI", tcp[:8]), tcp[(tcp[12] >> 4) * 4 :]
        flow = self._flows[ip[12:16], ports[0], ip[16:20], ports[1]]
        if data and sum(map(len, flow.values())) < HEARD_BYTES:
            flow[ports[2]] = data

    def said_to(self, doors: list[tuple[str, int]]) -> list[bytes]:
        """What each caller has said at these doors from the beginning; nothing is heard any more."""
        self._ends.set()
        self.join()
        wanted = {(socket.inet_aton(host), port) for host, port in doors}
        parts = [sorted(flow.items()) for (_, _, *to), flow in self._flows.items() if tuple(to) in wanted and flow]
        return [b"".join(data for _, data in flow) for flow in parts]


def listening(pid: int) -> set[tuple[str, int]]:
    """Where a process listens; psutil would look at the network of who asks."""
    own: set[str] = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            own.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found: set[tuple[str, int]] = set()
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in own:
                address, port = words[1].split(":")
                parts = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                found.add((socket.inet_ntop(family, struct.pack(f"={len(parts)}I", *parts)), int(port, 16)))
    return found


class Workers:
    """The processes of a run on a host, all but Ray's own."""

    def __init__(self, hosts: Hosts, host: int):
        alive = [psutil.Process(pid) for pid in hosts.pids(host)]
        # Workers are forked, and so have the command of the process that starts them.
        self.processes = [one for one in alive if "srl.launchers.nursery" in " ".join(one.cmdline())]
        assert len(self.processes) > 2

    def doors(self) -> set[tuple[str, int]]:
        """Where they listen, in the network of their host."""
        return {door for one in self.processes for door in listening(one.pid)}

    def memory(self) -> list[int]:
        return [one.memory_full_info().pss for one in self.processes]

    def descriptors(self) -> list[int]:
        return [one.num_fds() for one in self.processes]


class Runs:
    """A run over two hosts, and a third that has no part in it."""

    def __init__(self, hosts: Hosts, cluster: Cluster, folder: Path):
        self.hosts, self.metrics = hosts, folder / "run" / "metrics.jsonl"
        tap = Tap(hosts.name(1))
        argv = [sys.executable, "-W", "error", "-m", "srl.cli", *RUN, "--address", cluster.address]
        popen = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder}
        self.process = cluster.run(0, [*argv, "--runs", str(folder)], **popen)
        self.go_on(2_000, 60)
        self.workers = [Workers(hosts, host) for host in range(2)]
        self.doors = [door for one in self.workers for door in sorted(one.doors())]
        self.heard = tap.said_to(self.doors)

    def row(self) -> dict:
        rows = [row for row in read_rows(self.metrics) if STEPS in row] if self.metrics.exists() else []
        return rows[-1] if rows else {STEPS: 0, "net/refused": 0}

    def wait_for(self, condition, seconds: float) -> None:
        ended = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if condition():
                return
            assert self.process.poll() is None, self.process.stdout.read()
            ended.wait(0.05)
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=30)
        logs = {log.name: log.read_text() for log in (self.metrics.parent / "logs").glob("*.log")}
        pytest.fail(f"it did not happen in time; {self.row()}\n{said}\n{logs}")

    def go_on(self, steps: int, seconds: float = 30) -> None:
        """Until so many steps more are trained on."""
        before = self.row()[STEPS]
        self.wait_for(lambda: self.row()[STEPS] >= before + steps, seconds)

    def stranger(self, **given) -> subprocess.Popen:
        popen = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        stranger = self.hosts.run(2, [sys.executable, "-m", "tests.stranger"], **popen)
        heard = [one.hex() for one in self.heard]
        stranger.stdin.write(json.dumps({"doors": self.doors, "heard": heard, "seed": 0, **given}) + "\n")
        stranger.stdin.flush()
        return stranger

    def attacked(self, frames: int, together: int = 20) -> dict:
        said, _ = self.stranger(frames=frames, together=together).communicate(timeout=200)
        return json.loads(said)

    def memory(self) -> list[int]:
        return [size for one in self.workers for size in one.memory()]

    def descriptors(self) -> list[int]:
        return [count for one in self.workers for count in one.descriptors()]


def is_back(now: list[int], before: list[int], by: int) -> bool:
    return all(after <= was + by for after, was in zip(now, before, strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("together", [20, pytest.param(2, marks=pytest.mark.fuzz)])
def test_a_run_goes_on_whatever_a_stranger_says(tmp_path: Path, together: int) -> None:
    with Hosts(3) as hosts, Cluster(hosts, cpus=5, count=2) as cluster:
        run = Runs(hosts, cluster, tmp_path)
        # Two trainers and two policy workers; where the trainers met is shut.
        assert len(run.doors) == 4
        assert {host for host, _ in run.doors} == {hosts.address(0), hosts.address(1)}
        assert len(run.heard) >= 2, "a relay of each host was heard"

        first = run.attacked(500)
        run.go_on(2_000)
        memory, descriptors = run.memory(), run.descriptors()
        done = run.attacked(FRAMES, together)
        run.go_on(2_000)
        print(done, [(now - was) >> 10 for now, was in zip(run.memory(), memory, strict=True)])
        assert done["frames"] >= FRAMES
        assert {"noise", "truncated", "oversized", "replayed", "foreign"} <= {kind for kind in done if done[kind]}
        assert done["longest"] <= WELCOME_BYTES
        run.wait_for(lambda: is_back(run.descriptors(), descriptors, 0), 20)
        run.wait_for(lambda: is_back(run.memory(), memory, GROWTH), 20)
        # Who is in and who is not is known for good once connections end, and those of the run do not.
        strangers = first["connections"] + done["connections"]
        run.wait_for(lambda: abs(run.row()["net/refused"] - strangers) <= OPEN, 20)

        silent = run.stranger(idle=IDLE)
        assert int(silent.stdout.readline()) == IDLE
        assert max(now - was for now, was in zip(run.descriptors(), descriptors, strict=True)) >= IDLE // 2
        run.go_on(2_000)
        silent.communicate("", timeout=30)
        run.wait_for(lambda: is_back(run.descriptors(), descriptors, 0), 20)
        run.wait_for(lambda: is_back(run.memory(), memory, GROWTH), 20)
        run.go_on(2_000)
        assert run.row()["run/restarts"] == 0

        run.process.send_signal(signal.SIGINT)
        said, _ = run.process.communicate(timeout=60)
    assert run.process.returncode == 130, said
    assert said.count("a message from the network was refused: who sent it has not the keys of this run") == 1
