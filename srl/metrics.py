"""Where time goes, what bounds a run, and where metrics are written.

    Clock          a worker splits its time by what it does
    Meter          control adds the clocks up, and says in one line what bounds the run and what to change
    JsonLines, TensorBoard     sinks of rows: a row is one point in time, `{metric name: number}`

Names follow the community: rollout/ep_rew_mean, time/fps, time/total_timesteps, eval/mean_reward, train/*, perf/*,
lag/*.
"""

from __future__ import annotations

import io
import os
import socket
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

import msgspec

from srl.files import Records, contents

STEPS = "time/total_timesteps"
"""The metric that is the x axis of all others."""


class Clock:
    """Splits the time of one worker: each lap is charged to what was done since the last."""

    def __init__(self) -> None:
        self._last = time.perf_counter()
        self._cpu = time.process_time()
        self._phases: dict[str, float] = {}
        self._paused = self._last, self._cpu

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to a phase."""
        now = time.perf_counter()
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    def pause(self) -> None:
        """Others use the thread from now on."""
        self._paused = time.perf_counter(), time.process_time()

    def go_on(self) -> None:
        """The thread is this worker's again; what passed since the pause is not its time."""
        wall, cpu = self._paused
        self._last += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu

    def collect(self) -> dict[str, Any]:
        """Seconds by phase since the last collection, and the processor seconds of this process."""
        cpu = time.process_time()
        collected = {"phases": self._phases, "cpu": cpu - self._cpu}
        self._phases, self._cpu = {}, cpu
        return collected


class Meter:
    """The clocks of all workers of a kind, added up over the last few reports."""

    def __init__(self, memory: float = 0.7) -> None:
        self._memory = memory
        self._phases: dict[str, dict[str, float]] = defaultdict(dict)
        self.cpu_seconds = 0.0

    def add(self, kind: str, report: dict[str, Any]) -> None:
        """Count one worker's report; older reports fade."""
        self.cpu_seconds += report["cpu"]
        phases = self._phases[kind]
        for phase in phases:
            phases[phase] *= self._memory
        for phase, seconds in report["phases"].items():
            phases[phase] = phases.get(phase, 0.0) + seconds

    def shares(self, kind: str) -> dict[str, float]:
        """How the workers of a kind split their time; sums to 1."""
        phases = self._phases.get(kind, {})
        total = sum(phases.values())
        return {phase: seconds / total for phase, seconds in phases.items()} if total else {}

    def row(self) -> dict[str, float]:
        """All shares as metrics."""
        return {
            f"perf/{kind}/{phase}": round(share, 4)
            for kind in self._phases
            for phase, share in self.shares(kind).items()
        }

    def bound(self) -> str:
        """One line: what bounds the run, and what to change."""
        trainer, actor, policy = self.shares("trainer"), self.shares("actor"), self.shares("policy")
        if not trainer or not actor:
            return "starting"
        if not any(phase.startswith("wait") for shares in (trainer, actor, policy) for phase in shares):
            return self._bound_in_turn()
        idle = trainer.get("wait-data", 0.0)
        acting = 1.0 - actor.get("wait-credit", 0.0)
        if idle < 0.2:
            advice = "fewer epochs, more --threads, or --device cuda"
            return f"training bounds this run (busy {1 - idle:.0%}); to go faster: {advice}"
        if acting < 0.8:
            return (
                f"credits bound this run: trainer and actors take turns (waiting {idle:.0%} and {1 - acting:.0%}); "
                "to go faster: --max-lag 1 lets actors run ahead"
            )
        return self._bound_of_acting(actor, policy)

    def _bound_in_turn(self) -> str:
        """In one thread nobody waits; what takes most of it bounds the run."""
        acting = [self._phases[kind].get("act", 0.0) for kind in ("actor", "policy") if kind in self._phases]
        spent = {
            "training": sum(self._phases["trainer"].values()),
            "environments": self._phases["actor"].get("env", 0.0),
            "inference": sum(acting),
        }
        name = max(spent, key=lambda key: spent[key])
        total = sum(sum(phases.values()) for phases in self._phases.values())
        return f"one thread does all in turn, {spent[name] / total:.0%} of it {name}; to go faster: --launcher local"

    def _bound_of_acting(self, actor: dict[str, float], policy: dict[str, float]) -> str:
        env = actor.get("env", 0.0)
        inference = actor.get("act", 0.0) + actor.get("wait-act", 0.0)
        if env >= inference:
            return f"environments bound this run ({env:.0%} of the actors' time); to go faster: more --actors"
        if policy and policy.get("wait-request", 0.0) > 0.5:
            share = f"{inference:.0%} of the actors' time"
            return f"waiting for replies bounds this run ({share}); to go faster: a larger --ring"
        advice = "more policy workers" if policy else "more --actors, or --act shm"
        return f"inference bounds this run ({inference:.0%} of the actors' time); to go faster: {advice}"


class Sink(Protocol):
    """Somewhere rows of metrics go."""

    def write(self, row: dict[str, Any]) -> None:
        """Keep one row."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class JsonLines:
    """One JSON object per row, whole lines only."""

    def __init__(self, path: Path) -> None:
        torn = _is_torn(path)
        self._records = Records(path)
        if torn:
            self._records.append(b"\n")

    def write(self, row: dict[str, Any]) -> None:
        """Append the row."""
        self._records.append(msgspec.json.encode(row) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._records.close()


class Events:
    """A file of events as TensorBoard reads them; those of one folder sort by their beginning."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] generated

        # TensorBoard's own writer has a thread, which dies of a full disk and loses what it holds when it is killed.
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.s{time.time_ns()}"
        self._records = Records(folder / name)
        self.append(Event(wall_time=now, file_version="brain.Event:2"))

    def append(self, event: Any) -> None:
        """Append an event, whole or not at all."""
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._records.append(record.getvalue())

    def close(self) -> None:
        """Close the file."""
        self._records.close()


class TensorBoard:
    """Scalars for TensorBoard, on the axis of steps."""

    def __init__(self, folder: Path) -> None:
        self._events = Events(folder)

    def write(self, row: dict[str, Any]) -> None:
        """Add every number of the row."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] generated
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] generated

        numbers = {tag: value for tag, value in row.items() if tag != STEPS and isinstance(value, int | float)}
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in numbers.items()])
        self._events.append(Event(wall_time=time.time(), step=row[STEPS], summary=summary))

    def close(self) -> None:
        """Close the file."""
        self._events.close()


def _is_torn(path: Path) -> bool:
    """Whether a file ends in the middle of a line, because whoever wrote it died."""
    return path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a line that was being written when the run died is left out."""
    rows: list[dict[str, Any]] = []
    for line in contents(path).split(b"\n"):
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return rows
