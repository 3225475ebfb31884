"""Whether a checkpoint is as it was written: the digests of its files, and the newest one that is intact.

    step_000000409600/SHA256SUMS      a line per file; `sha256sum -c SHA256SUMS` says the same

Control asks before any worker starts, so this knows no torch.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from srl.errors import UserError
from srl.files import contents, text_of

FORMAT = 2
"""Version of what a checkpoint folder holds; the first had no digests."""
META, WEIGHTS, TRAINING, SUMS = "meta.json", "weights.safetensors", "training.pt", "SHA256SUMS"
LANES = "lanes"
"""The folder in which each lane keeps how it stood."""
BEST = "_best"
"""Ends the name of a checkpoint that only acts: the best that was evaluated."""


class _Meta(msgspec.Struct):
    """What every meta.json says."""

    format: int
    steps: int
    version: int


def sums_of(files: Mapping[str, bytes | memoryview]) -> bytes:
    """The digests of files, as sha256sum writes them."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def in_order(folder: Path) -> list[Path]:
    """The checkpoints of a folder by steps, and those of one step in the order they were saved."""
    return sorted(folder.glob("step_[0-9]*"), key=_numbers)


def steps_of(path: Path) -> int:
    """The steps that a checkpoint's name says."""
    return _numbers(path)[0]


def _numbers(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"[0-9]+", path.name)]


def find(folder: Path, which: str) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that `which` names, and its meta; for a latest that is damaged, the newest that is intact."""
    path = (folder / which).resolve()
    problem = damage(path)
    if problem is None:
        return path, _meta(path)
    intact = newest_intact(folder)
    if not path.is_dir():
        known = ", ".join(sorted(p.name for p in folder.glob("*") if not p.name.startswith("."))) or "none"
        problem = f"no checkpoint {which!r} in {folder}; there are: {known}"
    if intact is None or which != "latest":
        raise UserError(f"{problem}; intact is {intact.name}" if intact else problem)
    print(f"srl: {problem}; taking {intact.name} instead", file=sys.stderr)
    return intact, _meta(intact)


def newest_intact(folder: Path) -> Path | None:
    """The checkpoint with most steps that training can go on from."""
    paths = [path for path in in_order(folder) if (path / TRAINING).is_file()]
    return next((path for path in reversed(paths) if damage(path) is None), None)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is as it was written."""
    try:
        return _difference(path)
    except (UserError, OSError, UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        return f"{path} is damaged: {error}"


def _difference(path: Path) -> str | None:
    meta = _meta(path)
    if meta.get("format") not in range(1, FORMAT + 1):
        return f"{path} has format {meta.get('format')}, and this version of srl reads up to {FORMAT}"
    sums = _sums(path) if msgspec.convert(meta, _Meta).format > 1 or (path / SUMS).exists() else None
    for name in (META, WEIGHTS, TRAINING, *(name for name in sums or {} if name.startswith(LANES))):
        found = _digest(path / name)
        if found != sums.get(name) if sums is not None else found is None and name != TRAINING:
            return f"{path / name} is damaged: it is {'not what was written' if found else 'gone'}"
    return None


def _meta(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(contents(path / META), type=dict[str, Any])


def _sums(path: Path) -> dict[str, str]:
    lines = text_of(path / SUMS).splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _digest(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
