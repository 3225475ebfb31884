"""The life of a run: start, watch, report, evaluate, stop, and leave nothing behind.

    describe -> start -> [ messages -> metrics, console;  ends and silences -> failure;  Ctrl-C -> finish ] -> close

Control computes nothing that a run's result depends on: trainers count, and say when they are finished.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srl import runs
from srl.console import Console, View, summary_lines
from srl.envs.base import name_of_env
from srl.errors import UserError
from srl.evaluations import Evaluations
from srl.experiment import Experiment, only
from srl.launchers.base import Event, Launcher, WorkerFailed
from srl.launchers.named import LauncherName, launcher_named
from srl.launchers.plan import Task, tasks_of
from srl.metrics import STEPS, JsonLines, Meter, Sink, TensorBoard, read_rows
from srl.params import checksum
from srl.recovery import Recovery, TrainerLost
from srl.rewind import rewind
from srl.runs import Run
from srl.store import Store

POLL_SECONDS = 0.25
CLOSE_SECONDS = 5.0
"""A worker that does not close in so long is killed."""
SHOWN = 200
"""Characters of an environment's fault that are shown."""
FINISH_SECONDS = 10.0
"""A trainer that is asked to finish has so long to write its last checkpoint."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    path: Path
    summary: dict[str, Any]


def train(
    experiment: Experiment,
    *,
    launcher: LauncherName = "local",
    address: str | None = None,
    runs_folder: str | Path = "runs",
    name: str | None = None,
    quiet: bool = False,
    command: list[str] | None = None,
    sinks: Sequence[Sink] = (),
) -> Result:
    """Run an experiment to its end and say how it ended.

    `address` is that of a Ray cluster, for its launcher; `sinks` get every row of metrics, besides those of the run.
    """
    experiment.check()
    console = Console(quiet)
    with _launched(launcher, address) as launched:
        shapes = launched.describe(experiment)
        env = name_of_env(only(experiment.actors)[1].env)
        run = runs.create(Path(runs_folder), experiment, env, name, command or sys.argv)
        return Control(experiment, launched, run, console, sinks=sinks).run(shapes)


def resume(
    run: Run,
    experiment: Experiment,
    *,
    launcher: LauncherName = "local",
    address: str | None = None,
    quiet: bool = False,
    sinks: Sequence[Sink] = (),
) -> Result:
    """Go on with a run from its last checkpoint."""
    if run.summary()["status"] == "running":
        raise UserError(f"{run.path} is still running; end it first")
    with _launched(launcher, address) as launched:
        shapes = launched.describe(experiment.check())
        return Control(experiment, launched, run, Console(quiet), resume=True, sinks=sinks).run(shapes)


@contextlib.contextmanager
def _launched(name: LauncherName, address: str | None) -> Generator[Launcher]:
    launcher = launcher_named(name, address)
    try:
        yield launcher
    finally:
        launcher.close(0.0)


class Control:
    """Watches one run."""

    def __init__(
        self,
        experiment: Experiment,
        launcher: Launcher,
        run: Run,
        console: Console,
        *,
        resume: bool = False,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._experiment = experiment
        self._launcher = launcher
        self._run = run
        self._console = console
        self._resume = resume
        self._tasks = tasks_of(experiment)
        self._recovery = Recovery(experiment, launcher)
        self._faults = 0
        self._refused = 0
        self._shown: set[str] = set()
        self._mute: set[str] = set()
        self._meter = Meter()
        self._view = View(total=experiment.stop.steps, goal=experiment.stop.reward)
        self._more_sinks = sinks
        self._sinks: list[Sink] = []
        self._finished: dict[Task, dict[str, Any]] = {}
        self._evaluations = Evaluations(experiment, lambda task: launcher.tell(task, {"do": "evaluate"}))
        self._signal: int | None = None
        self._reason = ""

    def run(self, shapes: dict[str, Any]) -> Result:
        """Start the workers, watch them to the end, and write down how it ended."""
        self._run.write_summary({"status": "running", "pid": os.getpid()})
        self._console.begin(_title(self._experiment), str(self._run.path))
        status, failure = "failed", None
        with self._signals():
            try:
                while not self._live(shapes):
                    self._resume = self._is_saved()
                status = "interrupted" if self._signal else "completed"
            except BaseException as error:
                failure, self._reason = error, str(error) or type(error).__name__
                raise
            finally:
                self._launcher.close(CLOSE_SECONDS if failure is None else 1.0)
                summary = self._close(status)
        for line in summary_lines(summary):
            self._console.say(line)
        if self._signal:
            self._console.say(f"go on with: srl resume {self._run.path}")
            raise SystemExit(128 + signal.SIGTERM) if self._signal == signal.SIGTERM else KeyboardInterrupt
        return Result(self._run.path, summary)

    def _live(self, shapes: dict[str, Any]) -> bool:
        """Start every worker and watch them to the end; False when a trainer died and all must go on from files."""
        if self._resume or self._recovery.count:
            self._go_back()
        try:
            self._sinks = [JsonLines(self._run.metrics), TensorBoard(self._run.path), *self._more_sinks]
        except OSError as error:
            raise UserError(f"cannot write metrics in {self._run.path}: {error.strerror}") from error
        waiting = self._launcher.start(self._experiment, shapes, self._run, resume=self._resume)
        self._recovery.wait_for_place(waiting)
        self._evaluations.ask_again()
        try:
            self._watch()
        except TrainerLost as lost:
            self._console.say(f"{lost}; everything starts again from the last checkpoint")
            self._launcher.stop(1.0)
            self._recovery.forget()
            for sink in self._sinks:
                sink.close()
            return False
        return True

    def _go_back(self) -> None:
        """Take back what was measured after the checkpoints that training goes on from, or since it began."""
        policies = [trainers.policy for trainers in self._experiment.trainers.values()] if self._resume else []
        found = [checksum.find(self._run.checkpoints(policy), "latest")[1] for policy in policies]
        steps, view = max((meta["steps"] for meta in found), default=0), self._view
        if view.steps > steps:
            self._console.say(f"lost: {view.steps - steps:,} steps, all since the last checkpoint")
        view.steps, view.seconds = steps, max((meta.get("seconds") or 0.0 for meta in found), default=0.0)
        rewind(self._run.path, steps)
        self._evaluations.go_back(read_rows(self._run.metrics) if self._run.metrics.exists() else [], steps)
        view.evaluation = self._evaluations.last

    def _is_saved(self) -> bool:
        folders = [self._run.checkpoints(trainers.policy) for trainers in self._experiment.trainers.values()]
        return all((folder / "latest").exists() for folder in folders)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        """The first Ctrl-C asks the trainers to finish, the second ends at once."""

        def handle(number: int, _: Any) -> None:
            if self._signal:
                raise KeyboardInterrupt
            self._signal = number

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self) -> None:
        """Until every trainer has finished and the last version is evaluated."""
        trainers = [task for task in self._tasks if task.kind == "trainer"]
        give_up: float | None = None
        # The first trainer of each group speaks for all.
        while len(self._finished) < len(self._experiment.trainers):
            self._turn()
            if self._signal and give_up is None:
                give_up = time.monotonic() + FINISH_SECONDS
                for task in trainers:
                    self._launcher.tell(task, {"do": "finish", "reason": "interrupted"})
            if give_up is not None and time.monotonic() > give_up:
                self._reason = "interrupted; the trainer did not finish in time, the last checkpoint is an older one"
                return
        if not self._signal:
            self._evaluations.finished(max(int(done["steps"]) for done in self._finished.values()))
        while not self._signal and self._evaluations.owed:
            self._turn()

    def _turn(self) -> None:
        for event in self._launcher.poll(POLL_SECONDS):
            self._handle(event)
        for task in self._recovery.turn():
            self._console.say(f"{task.name} lives again")
            self._evaluations.lives_again(task)
        self._view.bound = self._meter.bound()
        self._console.update(self._view)

    def _handle(self, event: Event) -> None:
        message = event.message
        kind = message["kind"]
        if kind == "clock":
            self._meter.add(event.task.kind, message)
        elif kind == "progress":
            self._progress(message)
        elif kind == "evaluation":
            self._evaluation(event.task, message)
        elif kind == "finished":
            self._finished[event.task] = message["summary"]
            self._reason = message["reason"]
        elif kind == "exit":
            how = message.get("how") or _say_exit(message["status"]) + self._log_hint(event.task)
            self._console.say(self._recovery.died(event.task, how))
        elif kind == "faults":
            self._count_faults(event.task, message["texts"])
        elif kind in ("warning", "refused"):
            self._warn(event.task, message)
        elif kind in ("epoch", "reclaimed", "silent", "back", "gone", "ready"):
            self._recovery.heard(event)
        elif kind == "user_error":
            raise UserError(f"{event.task.name}: {message['error']}")
        else:
            raise WorkerFailed(f"{event.task.name}: {message['error']}", message["traceback"])

    def _warn(self, task: Task, message: dict[str, Any]) -> None:
        text, count = message.get("text"), message.get("count", 0)
        if count and not self._refused:
            text = f"a message from the network was refused: {message['why']}"
        self._refused += count
        if text:
            self._console.say(f"{task.name}: {text}")

    def _progress(self, message: dict[str, Any]) -> None:
        row, view = message["row"], self._view
        steps, seconds = row[STEPS], row["time/seconds"]
        view.fps = (steps - view.steps) / max(seconds - view.seconds, 1e-9)
        before = view.steps
        view.steps, view.seconds, view.version = steps, seconds, row["train/version"]
        view.reward = row.get("rollout/ep_rew_mean")
        view.best, view.episodes, view.lag = message["best"], row["rollout/episodes"], row["lag/mean"]
        if view.reward is not None:
            view.add_to_curve(view.reward)
        self._write({**row, "time/fps": round(view.fps, 1), **self._counts(), **self._meter.row()})
        self._evaluations.trained(before, steps)

    def _count_faults(self, task: Task, texts: list[str]) -> None:
        """Environments failed and were built anew; the first of each kind is shown."""
        self._faults += len(texts)
        for text in texts:
            lines = [line[:SHOWN] for line in text.strip().splitlines()]
            kind = re.sub("^environment [0-9]+ ", "", lines[-1])
            if kind not in self._shown:
                self._shown.add(kind)
                self._console.say(f"{task.name}: {' ... '.join(dict.fromkeys((lines[0], lines[-1])))}")

    def _evaluation(self, task: Task, message: dict[str, Any]) -> None:
        self._evaluations.heard(task, message["steps"], message["mean_reward"])
        self._view.evaluation = message["mean_reward"]
        names = ("version", "steps", "mean_reward", "std_reward", "episodes", "mean_ep_length")
        try:
            policy = self._experiment.actors[task.group].policy
            Store(self._run.path / "store.sqlite").add_evaluation(policy, *(message[name] for name in names))
        except UserError as error:
            self._console.say(f"srl: {error}")
        self._write(
            {
                STEPS: message["steps"],
                "eval/version": message["version"],
                "eval/mean_reward": message["mean_reward"],
                "eval/std_reward": message["std_reward"],
                "eval/mean_ep_length": message["mean_ep_length"],
            }
        )

    def _counts(self) -> dict[str, int]:
        return {
            "run/restarts": self._recovery.count,
            "env/restarts": self._faults,
            "net/refused": self._refused,
        }

    def _write(self, row: dict[str, Any]) -> None:
        for sink in self._sinks:
            name = type(sink).__name__
            try:
                sink.write(row)
            except OSError as error:
                # A full disk costs points of the curve, not the run.
                if name not in self._mute:
                    self._console.say(f"no metrics are written by {name}: {error.strerror or error}; the run goes on")
                self._mute.add(name)
            else:
                if name in self._mute:
                    self._console.say(f"metrics are written by {name} again")
                self._mute.discard(name)

    def _close(self, status: str) -> dict[str, Any]:
        self._console.end()
        for sink in self._sinks:
            sink.close()
        summary: dict[str, Any] = {"status": status, "reason": self._reason, **self._view_summary()}
        for done in self._finished.values():
            summary |= done
        if self._evaluations.last is not None:
            summary["eval_mean_reward"] = self._evaluations.last
            summary["best_eval_mean_reward"] = self._evaluations.best
        summary |= {"restarts": self._recovery.count, "env_restarts": self._faults}
        summary["cpu_seconds"] = round(self._meter.cpu_seconds, 1)
        summary["bound"] = self._view.bound
        try:
            self._run.write_summary(summary)
        except UserError as error:
            self._console.say(f"srl: {error}")
        return summary

    def _view_summary(self) -> dict[str, Any]:
        view = self._view
        return {
            "steps": view.steps,
            "seconds": view.seconds,
            "episodes": view.episodes,
            "ep_rew_mean": view.reward,
            "best_ep_rew_mean": view.best,
            "version": view.version,
            **dict.fromkeys(("frames", "fps", "lag_mean", "lag_max", "weights_sha256")),
        }

    def _log_hint(self, task: Task) -> str:
        return f"; its log is {self._run.logs / (task.name + '.log')}"


def _title(experiment: Experiment) -> str:
    actors, trainers = only(experiment.actors)[1], only(experiment.trainers)[1]
    many = f"{trainers.count} trainers x " if trainers.count > 1 else ""
    envs = f"{actors.count} actor(s) x {actors.ring} x {actors.envs} environments"
    size = f"{envs}, {many}{trainers.threads} thread(s) to train"
    compiled = ", compiled" if only(experiment.policies)[1].compile else ""
    return f"{experiment.name} on {name_of_env(actors.env)}, seed {experiment.seed}: {size}{compiled}"


def _say_exit(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended on its own with code {status}"
