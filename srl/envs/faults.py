"""What goes wrong with environments: how much of it is borne, the record of it, and the end when it is too much.

    raised   an exception, with its traceback        nan     a number that is not finite
    hung     no answer in time                       shape   an observation that is not what the space says
    died     the process was killed or has ended

A fault costs the row its episode: it is truncated where it failed, `broken` says so, and the environment is built anew.
This module must not know how environments are stepped.
"""

from __future__ import annotations

import math
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from srl.errors import UserError
from srl.tree import SpecTree, leaves, name_of

Kind = Literal["raised", "hung", "died", "nan", "shape"]
TEXT = 8_000
"""Characters of a traceback that are kept; its end says most."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much may go wrong with the environments of a batch before the run ends."""

    limit_seconds: float = 10.0
    """A step that takes longer counts as hung; only where environments have processes of their own."""
    reset_seconds: float = 60.0
    """The same for a reset, and for building an environment."""
    max_faults: int = 100
    """So many faults within `window_seconds` are borne, and one more ends the run."""
    window_seconds: float = 60.0
    """How long a fault counts."""

    def __post_init__(self) -> None:
        for name in ("limit_seconds", "reset_seconds", "window_seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"environments: {name} is {getattr(self, name)!r}; it must be above 0")
        if self.max_faults < 0:
            raise UserError(f"environments: max_faults is {self.max_faults!r}; it must not be below 0")


@dataclass(frozen=True)
class Fault:
    """One environment that failed."""

    row: int | None
    """None where all of a batch failed together."""
    kind: Kind
    text: str
    """Its own traceback, the name of the signal, or what was wrong."""

    def __str__(self) -> str:
        return f"{'all environments' if self.row is None else f'environment {self.row}'} {self.kind}: {self.text}"


class Unusable(UserError):
    """Environments contradict what they say of themselves, and would do so again when built anew."""


class TooManyFaults(RuntimeError):
    """Environments fail so often that going on makes no sense; says how the last one did."""


class Faults:
    """The faults of a batch, until they are asked for."""

    def __init__(self, limits: Limits, name: str, size: int) -> None:
        self._limits = limits
        self._name = name
        self._size = size
        self._new: list[Fault] = []
        self._times: deque[float] = deque()

    def add(self, row: int | None, kind: Kind, text: str) -> None:
        """Record a fault; raises when it is one too many."""
        self._new.append(Fault(row, kind, text))
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - self._limits.window_seconds:
            self._times.popleft()
        if len(self._times) > self._limits.max_faults:
            raise TooManyFaults(
                f"{self._name}: {len(self._times)} faults within {self._limits.window_seconds:g} s, at most "
                f"{self._limits.max_faults} are allowed; the last, in {_which(row, self._size)}: {kind}: {text}"
            )

    def drain(self) -> list[Fault]:
        """The faults since the last call."""
        new, self._new = self._new, []
        return new


def _which(row: int | None, size: int) -> str:
    return f"all {size} environments" if row is None else f"environment {row} of {size}"


def of_exception(error: BaseException) -> tuple[Kind, str]:
    """The kind of fault that an exception is, and its text."""
    # The only UserErrors that a step can end in are those of what checks observations and masks.
    if isinstance(error, UserError):
        return "shape", " ".join([str(error), *getattr(error, "__notes__", [])])
    told = traceback.TracebackException.from_exception(error)
    notes, told.__notes__ = getattr(error, "__notes__", []), None
    said = list(told.format_exception_only())
    # Notes before what it says of itself, which comes last.
    lines = [*list(told.format())[: -len(said)], *(f"{note}\n" for note in notes), *said]
    return "raised", "".join(lines)[-TEXT:]


def seed_after(seed: int, row: int, life: int) -> int:
    """The seed of an environment that was built anew for the time number `life`."""
    return int(np.random.SeedSequence(seed, spawn_key=(row, life)).generate_state(1)[0]) >> 1


class Finite:
    """Finds rows whose observation or reward is not finite."""

    def __init__(self, obs: SpecTree) -> None:
        floats = [path for path, leaf in leaves(obs) if np.dtype(leaf.dtype).kind in "fc"]
        self._named = [(path, f"the observation {name_of(path)}") for path in floats]

    def wrong(self, step: dict[str, Any]) -> dict[int, str]:
        """What is wrong with each such row of a step or a reset."""
        found = self._look(step["reward"], "the reward", {}) if "reward" in step else {}
        for path, what in self._named:
            leaf = step["obs"]
            for name in path:
                leaf = leaf[name]
            found = self._look(leaf, what, found)
        return found

    def _look(self, values: Any, what: str, found: dict[int, str]) -> dict[int, str]:
        # What is not finite makes a sum of squares that is not, found in half the time; so may what is merely large.
        if math.isfinite(abs(np.vdot(values, values))) or (fine := np.isfinite(values)).all():
            return found
        rows: Sequence[int] = np.flatnonzero(~fine.reshape(len(values), -1).all(axis=1)).tolist()
        return {**{row: f"{what} is {values[row]}, which is not finite"[:TEXT] for row in rows}, **found}


def break_rows(out: dict[str, Any], rows: Sequence[int], last: Any) -> None:
    """Let the episodes of these rows end where they failed: truncated, with the last good observation."""
    if not rows:
        return
    at = list(rows)
    _copy_rows(out["obs"], last, at)
    for name, value in _BROKEN.items():
        if name in out:
            out[name][at] = value
    if "mask" in out:
        for _, leaf in leaves(out["mask"]):
            leaf[at] = True


_BROKEN = {"reward": 0, "terminated": False, "truncated": True, "score": 0, "game_over": True, "broken": True}


def _copy_rows(target: Any, source: Any, rows: list[int]) -> None:
    for (_, to), (_, given) in zip(leaves(target), leaves(source), strict=True):
        to[rows] = given[rows]
