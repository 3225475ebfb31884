"""What a run goes back to: the run that it goes on with, or the weights of another that it begins with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from srl import runs
from srl.errors import UserError
from srl.experiment import MAIN, Experiment, Init, Stop
from srl.runs import Run
from srl.settings import to_plain
from srl.store import Store


def initialised(experiment: Experiment, folder: Path, origin: str, part: str) -> Experiment:
    """The experiment that begins with the weights of another run, RUN or RUN:VERSION, or a part of them."""
    name, _, which = origin.rpartition(":") if ":" in origin else (origin, "", "")
    run = runs.find(folder, name)
    checkpoints = run.checkpoints(MAIN)
    if which in ("", "best", "latest"):
        which = which or ("best" if (checkpoints / "best").exists() else "latest")
    else:
        which = Store(run.path / "store.sqlite").find(MAIN, which).folders[0]
    init = Init(checkpoint=str((checkpoints / which).resolve()), part=part)
    policies = {key: replace(policy, init=init) for key, policy in experiment.policies.items()}
    return replace(experiment, policies=policies)


def same(experiment: Experiment, folder: Path, name: str) -> Run:
    """The run to go on with; a UserError that names the first setting in which it differs from what was asked for."""
    run = runs.find(folder, name)
    given, known = (to_plain(replace(each, stop=Stop())) for each in (experiment, run.experiment()))
    differing = next(_differences(given, known), None)
    if differing is not None:
        path, asked, is_now = differing
        raise UserError(f"{run.path} has {path} = {is_now!r}, and you ask for {asked!r}; use --init to begin from it")
    return run


def _differences(one: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif one != other:
        yield path, one, other
