"""How SRL scales: with environments that sleep, so that hundreds of actors fit on few cores.

    actors   steps per second of 1, 2, 4, ... actors over four hosts, against the ideal line
    edges    processor time per step for each way to connect workers, by the kind of process that spends it
    peer     the same totals of RLlib's IMPALA and of SRL, on the same environments, in turns

    python perf/scaling.py actors --counts 1 2 4 8       adds what it measures to perf/scaling.json
    python perf/scaling.py edges peer
    python perf/scaling.py --draw                        table and picture again, from the figures of the last runs

Hosts are network namespaces with a Ray node each (as root), whose CPUs are only counted: an actor takes one and sleeps.
Steps are those that were trained on. Processor time is that of all processes, Ray's too, between two updates, as the
kernel counts it; a worker is known by its log. Environments, acting and learning count their own inside the workers
(peers/spent.py), Python between torch's operations included; what is left is the system. RLlib is installed by
perf/peers/install.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE), str(HERE / "peers")]

from counted import CountedAlgorithm, CountedModel  # noqa: E402 the line above lets it be found from any folder
from spent import spent  # noqa: E402

from srl import processes  # noqa: E402
from srl.bench import Printer, _Updates, end  # noqa: E402
from srl.control import train  # noqa: E402
from srl.experiment import Experiment  # noqa: E402
from srl.recipes.impala import impala  # noqa: E402

RESULTS = HERE / "scaling.json"
HOSTS = 4
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PEER_COUNTS = (4, 8, 16)
MAX_LAG = 2
FOREVER = 10**12


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run that is measured."""

    actors: int
    act: str = "inline"
    hosts: int = 0
    """Hosts of a Ray cluster; 1 is this one, and 0 does without Ray."""
    envs: int = 8
    rollout: int = 32
    sleep: float = 0.02
    """Seconds that a step of all environments of an actor takes."""

    @property
    def ideal(self) -> float:
        """Steps per second if nothing but sleep took time."""
        return self.actors * self.envs / self.sleep

    @property
    def batch(self) -> int:
        """Steps of an update."""
        return self.actors * self.envs * self.rollout


def experiment_of(setting: Setting, folder: Path) -> Experiment:
    """IMPALA with a small network; each actor brings one segment to each update."""
    made = impala(
        "sleeping:Sleeping",
        actors=setting.actors,
        envs=setting.actors * setting.envs,
        rollout=setting.rollout,
        max_lag=MAX_LAG,
        act=setting.act,  # type: ignore[arg-type]
        steps=FOREVER,
        hidden=(64, 64),
        compile=False,
    )
    inside = str(folder)
    actors = replace(made.actors["main"], env_kwargs={"seconds": setting.sleep, "folder": inside})
    policies, trainers = made.policies["main"], made.trainers["main"]
    return replace(
        made,
        actors={"main": actors},
        policies={"main": replace(policies, model=CountedModel(model=policies.model, folder=inside))},
        trainers={"main": replace(trainers, algorithm=CountedAlgorithm(algorithm=trainers.algorithm, folder=inside))},
        log_every=max(1, int(setting.ideal / 2)),
        checkpoint_every=FOREVER,
        checkpoint_seconds=1e9,
    )


def drive(setting: Setting, folder: Path, address: str | None) -> None:
    """Train until interrupted, and say after each row of metrics how far it is."""
    train(
        experiment_of(setting, folder / "spent"),
        launcher="ray" if address else "local",
        address=address,
        runs_folder=folder,
        name="run",
        quiet=True,
        sinks=[Printer()],
    )


# Measuring


@dataclass(frozen=True)
class Figures:
    """What was measured between two updates."""

    steps_per_second: float
    seconds: float
    cpu_us: dict[str, float]
    """Microseconds of processor time per step, by kind of process."""
    busy: float
    """Processors that were busy, of those there are, by anybody."""
    inside: dict[str, float]
    """Of them, those of environments, acting and learning."""

    @property
    def system(self) -> float:
        """Microseconds of processor time per step of all the rest."""
        return sum(self.cpu_us.values()) - sum(self.inside.values())


def window(
    process: subprocess.Popen[bytes], pids: Callable[[], list[int]], folder: Path, warmup: float, seconds: float
) -> Figures:
    """What happens between two updates."""
    with tempfile.TemporaryFile() as errors:
        updates = _Updates(process, errors)
        first = updates.next(120.0)
        while (opened := updates.next(60.0)).at < first.at + warmup:
            pass
        before, inside, busy = cpu_by_pid(pids()), spent(folder), machine()
        while (last := updates.next(60.0)).at < opened.at + seconds:
            pass
        after, inside_after, busy_after = cpu_by_pid(pids()), spent(folder), machine()
    steps, kinds = last.steps - opened.steps, Counter[str]()
    for pid, (kind, cpu) in after.items():
        kinds[kind] += 1e6 * (cpu - before.get(pid, (kind, 0.0))[1]) / steps
    ticks = [now - then for now, then in zip(busy_after, busy, strict=True)]
    return Figures(
        steps_per_second=steps / (last.at - opened.at),
        seconds=last.at - opened.at,
        cpu_us={kind: us for kind, us in sorted(kinds.items()) if us},
        busy=ticks[0] / sum(ticks),
        inside={part: 1e6 * (at - inside[part]) / steps for part, at in inside_after.items()},
    )


def cpu_by_pid(pids: list[int]) -> dict[int, tuple[str, float]]:
    """The kind of each process, and its processor seconds with those of the children it has buried."""
    return {pid: (kind_of(pid), processes.cpu_seconds([pid])) for pid in pids}


def kind_of(pid: int) -> str:
    """What a process is: a worker writes to its log, all others are known by their command."""
    with contextlib.suppress(OSError):
        log = re.search(r"/logs/([a-z]+)-.*\.log$", os.readlink(f"/proc/{pid}/fd/2"))
        if log:
            return log[1]
    command = ""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    if "scaling.py drive" in command:
        return "control"
    if "run_sleeping.py" in command:
        return "learner"
    if "EnvRunner" in command:
        return "env runner"
    return "host" if "ray::Host" in command or "nursery" in command else "ray"


def machine() -> list[float]:
    """Ticks in which this machine was busy, and in which it was not."""
    user, nice, system, idle, wait, *rest = map(float, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return [user + nice + system + sum(rest), idle + wait]


def measured(setting: Setting, warmup: float, seconds: float) -> Figures:
    """Run SRL as a setting says, and measure."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="srl-scaling-")))
        (folder / "spent").mkdir()
        argv = [sys.executable, str(Path(__file__).resolve()), "drive", json.dumps(asdict(setting)), str(folder)]
        process, pids = started(stack, setting, argv)
        try:
            return window(process, pids, folder / "spent", warmup, seconds)
        finally:
            leave(process)


def started(
    stack: ExitStack, setting: Setting, argv: list[str]
) -> tuple[subprocess.Popen[bytes], Callable[[], list[int]]]:
    """Bring up what a setting needs and start the driver; gives it, and all processes that it and Ray have."""
    popen: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    path = os.pathsep.join(sys.path[:3])
    if not setting.hosts:
        process = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path}, **popen)
        stack.callback(end, process)
        return process, lambda: processes.family(process.pid)
    from tests.cluster import Cluster
    from tests.hosts import Hosts

    os.environ["PYTHONPATH"] = path
    hosts = stack.enter_context(Hosts(setting.hosts)) if setting.hosts > 1 else None
    # Just enough, so that Ray shares the actors out to all hosts; trainer and policy worker take one each.
    cpus = -(-(setting.actors + 2) // setting.hosts)
    cluster = stack.enter_context(Cluster(hosts, cpus=cpus))
    process = cluster.run(0, [*argv, cluster.address], **popen)
    if hosts:
        return process, lambda: [pid for host in range(setting.hosts) for pid in hosts.pids(host)]
    node = cluster._nodes[0].pid
    return process, lambda: [*processes.family(node), *processes.family(process.pid)]


def leave(process: subprocess.Popen[bytes]) -> None:
    """Ask the driver to end its run, and wait until it has."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measured_peer(setting: Setting, python: Path, warmup: float, seconds: float) -> Figures:
    """Run RLlib on the environments of a setting, and measure."""
    words = {name: getattr(setting, name) for name in ("actors", "envs", "rollout", "sleep")}
    argv = [str(python), str(HERE / "peers" / "run_sleeping.py"), *(f"--{name}={at}" for name, at in words.items())]
    popen: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory(prefix="srl-scaling-") as folder:
        environment = {**os.environ, "SRL_SPENT": folder}
        process = subprocess.Popen(argv, start_new_session=True, env=environment, **popen)
        try:
            return window(process, lambda: processes.family(process.pid), Path(folder), warmup, seconds)
        finally:
            end(process)


# What is asked


def scale(counts: list[int], sleep: float, **windows: float) -> Iterator[dict[str, Any]]:
    """More and more actors over four hosts."""
    for count in counts:
        yield row(Setting(actors=count, hosts=HOSTS, sleep=sleep), measured, **windows)


EDGES = {
    "inline, shared memory, one host": {"act": "inline"},
    "act=shm, one host": {"act": "shm"},
    "act=net, one host": {"act": "net"},
    "inline, four hosts": {"act": "inline", "hosts": HOSTS},
    "act=shm, four hosts": {"act": "shm", "hosts": HOSTS},
    "act=net, four hosts": {"act": "net", "hosts": HOSTS},
}


def edges(actors: int, names: list[str], **windows: float) -> Iterator[dict[str, Any]]:
    """Each way to connect workers."""
    for name in names:
        yield {"edge": name, **row(Setting(actors=actors, **EDGES[name]), measured, **windows)}


def peer(counts: list[int], python: Path, **windows: float) -> Iterator[dict[str, Any]]:
    """RLlib, SRL on one Ray node as RLlib is, and SRL without Ray."""
    for count in counts:
        yield {
            "program": "RLlib",
            **row(Setting(actors=count), lambda one, **w: measured_peer(one, python, **w), **windows),
        }
        yield {"program": "SRL on Ray", **row(Setting(actors=count, hosts=1), measured, **windows)}
        yield {"program": "SRL", **row(Setting(actors=count), measured, **windows)}


def row(setting: Setting, measure: Callable[..., Figures], **windows: float) -> dict[str, Any]:
    """A setting and its figures."""
    figures = measure(setting, **windows)
    total = sum(figures.cpu_us.values())
    parts = ", ".join(f"{kind} {us:.1f}" for kind, us in figures.cpu_us.items())
    print(
        f"{setting.actors:4} actors, {setting.act}, {setting.hosts} hosts: {figures.steps_per_second:9,.0f} steps/s, "
        f"{figures.steps_per_second / setting.ideal:.0%} of ideal, machine {figures.busy:.0%} busy; "
        f"us per step: {total:.1f} ({parts}), of which system {figures.system:.1f}",
        flush=True,
    )
    return {**asdict(setting), "ideal": setting.ideal, **asdict(figures), "system_us": figures.system}


def main() -> int:
    """Measure what is asked, write the figures down."""
    if sys.argv[1:2] == ["drive"]:
        with contextlib.suppress(KeyboardInterrupt):
            drive(Setting(**json.loads(sys.argv[2])), Path(sys.argv[3]), *(sys.argv[4:] or [None]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["actors", "edges", "peer", []], metavar="WHAT")
    parser.add_argument("--counts", type=int, nargs="+", help=f"actors [{' '.join(map(str, COUNTS))}]")
    parser.add_argument("--edges", nargs="+", default=list(EDGES), choices=EDGES, metavar="EDGE", help="only these")
    parser.add_argument("--sleep", type=float, default=0.02, help="seconds of a step of all an actor's environments")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds before each window [4]")
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each window [12]")
    parser.add_argument("--python", type=Path, default=ROOT / ".peers" / "rllib" / "bin" / "python", help="RLlib's")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where figures are kept")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw docs/scaling.md again")
    options = parser.parse_args()
    windows = {"warmup": options.warmup, "seconds": options.seconds}
    found = json.loads(options.results.read_text()) if options.results.exists() else {}
    for what in options.what:
        for one in asked(what, options, windows):
            key = f"{one.get('edge') or one.get('program') or one['sleep']} {one['actors']}"
            found.setdefault(what, {})[key] = one
            options.results.write_text(json.dumps(found, indent=1))
    if options.draw:
        from scaling_picture import draw

        draw(found, ROOT / "docs")
    return 0


def asked(what: str, options: argparse.Namespace, windows: dict[str, float]) -> Iterator[dict[str, Any]]:
    """The rows of a question."""
    if what == "actors":
        return scale(options.counts or list(COUNTS), options.sleep, **windows)
    if what == "edges":
        return edges((options.counts or [8])[0], options.edges, **windows)
    return peer(options.counts or list(PEER_COUNTS), options.python, **windows)


if __name__ == "__main__":
    sys.exit(main())
