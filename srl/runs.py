"""The run folder: what a run leaves behind, and how it is found again.

runs/ppo__CartPole-v1__1__20260101-120000/
    experiment.yaml  command.txt  system.json  metrics.jsonl  summary.json  events.out.tfevents.*
    logs/<worker>.log  checkpoints/<policy>/{step_*,latest,best}
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from srl.errors import UserError, nearest
from srl.experiment import Experiment
from srl.files import contents, text_of, write_atomically
from srl.settings import from_yaml, to_yaml

PACKAGES = ("srl", "torch", "numpy", "gymnasium", "msgspec", "safetensors")


class _Summary(msgspec.Struct):
    """What is relied on in a summary."""

    status: str
    pid: int = 0
    steps: int = 0
    ep_rew_mean: float | None = None


class Run:
    """One run folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def logs(self) -> Path:
        """Where each worker's output goes."""
        return self.path / "logs"

    def checkpoints(self, policy: str) -> Path:
        """Where the checkpoints of a policy are."""
        return self.path / "checkpoints" / policy

    @property
    def metrics(self) -> Path:
        """The rows of metrics."""
        return self.path / "metrics.jsonl"

    def summary(self) -> dict[str, Any]:
        """How the run stands or ended; a run that died without a word is 'lost'."""
        try:
            summary = msgspec.json.decode(contents(self.path / "summary.json"), type=dict[str, Any])
            msgspec.convert(summary, _Summary)
        except (UserError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {"status": "lost"}
        if summary["status"] == "running" and not _lives(summary.get("pid", 0)):
            summary["status"] = "lost"
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace the summary."""
        write_atomically(self.path / "summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=2))

    def experiment(self, *trusted: str) -> Experiment:
        """The experiment as it ran; modules outside srl that it names must be trusted."""
        return from_yaml(Experiment, text_of(self.path / "experiment.yaml"), *trusted).check()


def create(folder: Path, experiment: Experiment, env: str, name: str | None, command: Sequence[str]) -> Run:
    """A new run folder with all that says what will run."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = folder / (
        name or f"{experiment.name}__{env.replace('/', '-').replace(':', '-')}__{experiment.seed}__{stamp}"
    )
    path = _made(path, exact=name is not None)
    run = Run(path)
    try:
        run.logs.mkdir()
        (path / "experiment.yaml").write_text(to_yaml(experiment))
        (path / "command.txt").write_text(shlex.join(command) + "\n")
        (path / "system.json").write_bytes(msgspec.json.format(msgspec.json.encode(system()), indent=2))
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        raise UserError(f"cannot write the run folder {path}: {error.strerror}") from error
    return run


def _made(path: Path, exact: bool) -> Path:
    """Make the folder; two runs of the same second get different ones."""
    for attempt in range(1000):
        candidate = path if attempt == 0 else path.with_name(f"{path.name}-{attempt}")
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            if exact:
                raise UserError(
                    f"a run named {path.name!r} exists in {path.parent}; go on with it: srl resume {path}; "
                    "or choose another --name"
                ) from None
        except OSError as error:
            raise UserError(f"cannot make the run folder {candidate}: {error.strerror}") from error
        else:
            return candidate
    raise UserError(f"cannot find a free name beside {path}")


def find(folder: Path, name: str) -> Run:
    """The run that a person means by a path or a name; 'latest' is the newest."""
    for path in (Path(name), folder / name):
        if (path / "experiment.yaml").is_file():
            return Run(path)
    runs = listing(folder)
    if name == "latest" and runs:
        return runs[-1]
    raise UserError(f"no run {name!r} in {folder}{nearest(name, [run.name for run in runs])}")


def listing(folder: Path) -> list[Run]:
    """All runs of a folder, oldest first."""
    found = [path.parent for path in folder.glob("*/experiment.yaml") if path.is_file()]
    return [Run(path) for path in sorted(found, key=lambda path: (path / "experiment.yaml").stat().st_mtime)]


def system() -> dict[str, Any]:
    """The machine and the packages a run used."""
    return {
        "platform": platform.platform(),
        "python": sys.version.split()[0],
        "processors": os.cpu_count(),
        "packages": {name: version_of(name) for name in PACKAGES},
    }


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0
