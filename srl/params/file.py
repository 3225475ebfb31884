"""Weights and training state as files: a checkpoint is a folder that appears whole or not at all.

    checkpoints/step_000000409600/weights.safetensors   what acts
                                  training.pt           optimizer, generators, counters; plain data and tensors only
                                  meta.json             version, steps, the shapes a policy is built from
    checkpoints/latest, best      links

Written beside, synced, renamed. Loading executes nothing: safetensors, JSON, and torch.load with weights_only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch

from srl.errors import UserError
from srl.tree import Spec, leaves

FORMAT = 1
"""Version of what a checkpoint folder holds."""
BEST = "_best"
"""Ends the name of a checkpoint that only acts: the best that was evaluated."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    meta: dict[str, Any]

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors that act."""
        return safetensors.torch.load_file(self.path / "weights.safetensors")

    def training(self) -> dict[str, Any]:
        """The state that training continues from."""
        return torch.load(self.path / "training.pt", weights_only=True, map_location="cpu")


def sha256_of(weights: dict[str, torch.Tensor]) -> str:
    """The digest of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(
    folder: Path,
    weights: dict[str, torch.Tensor],
    meta: dict[str, Any],
    training: dict[str, Any] | None,
    link: str,
    *,
    lanes: Path | None = None,
) -> Path:
    """Write a checkpoint and point `link` (latest or best) to it; each link has one writer at a time.

    A folder of lanes becomes part of it, where there is one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = _free_name(folder, f"step_{meta['steps']:012d}" + ("" if training is not None else BEST))
    partial = folder / f".{link}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    safetensors.torch.save_file(tensors, partial / "weights.safetensors")
    if training is not None:
        torch.save(training, partial / "training.pt")
    if lanes is not None and training is not None and lanes.exists():
        lanes.rename(partial / "lanes")
    (partial / "meta.json").write_bytes(msgspec.json.encode({"format": FORMAT, **meta}))
    for path in partial.rglob("*"):
        _sync(path)
    partial.rename(final)
    _point(folder / link, final.name)
    _sync(folder)
    return final


def write(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(data)
    partial.rename(path)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _free_name(folder: Path, name: str) -> Path:
    """A name that no checkpoint has: what a link points to is never touched, not even by a second save of one step."""
    names = chain([name], (f"{name}.{again}" for again in count(1)))
    return next(path for path in map(folder.joinpath, names) if not path.exists())


def _point(link: Path, name: str) -> None:
    fresh = link.with_name(f".{link.name}.link")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints and the newest best; what `latest` and `best` point to stays."""
    linked = {(folder / link).resolve() for link in ("latest", "best")}
    paths = sorted(folder.glob("step_*"))
    bests = [path for path in paths if BEST in path.name]
    others = [path for path in paths if BEST not in path.name]
    for path in [*others[:-keep], *bests[:-1]]:
        if path.resolve() not in linked:
            # Whoever prunes at the same time may be quicker.
            shutil.rmtree(path, ignore_errors=True)


def load(folder: Path, which: str) -> Checkpoint:
    """The checkpoint of a run that `which` names: latest, best, or a folder's name."""
    path = (folder / which).resolve()
    try:
        meta = msgspec.json.decode((path / "meta.json").read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        known = ", ".join(sorted(p.name for p in folder.glob("*") if not p.name.startswith("."))) or "none"
        raise UserError(f"no checkpoint {which!r} in {folder}; there are: {known}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path / 'meta.json'} is damaged: {error}") from error
    if meta.get("format") != FORMAT:
        raise UserError(f"{path} has format {meta.get('format')}, and this version of srl reads {FORMAT}")
    return Checkpoint(path, meta)


def spec_to_plain(spec: Any) -> Any:
    """A spec tree as plain data; bounds as text, because JSON has no infinity."""
    if spec is None:
        return None
    if isinstance(spec, Spec):
        bounds = {name: [str(float(x)) for x in _as_tuple(getattr(spec, name))] for name in ("low", "high")}
        return {**msgspec.to_builtins(spec), **bounds}
    return {"tree": {key: spec_to_plain(child) for key, child in spec.items()}}


def spec_from_plain(data: Any) -> Any:
    """The spec tree that plain data describes."""
    if data is None:
        return None
    if set(data) == {"tree"}:
        return {key: spec_from_plain(child) for key, child in data["tree"].items()}
    bounds = {name: tuple(float(x) for x in data[name]) for name in ("low", "high")}
    flat = {name: bound[0] if len(bound) == 1 else bound for name, bound in bounds.items()}
    return msgspec.convert({**data, **flat}, Spec)


def _as_tuple(bound: float | tuple[float, ...]) -> tuple[float, ...]:
    return bound if isinstance(bound, tuple) else (bound,)


def count_parameters(spec: dict[str, Any]) -> int:
    """Numbers in a set of weights."""
    return sum(leaf.size for _, leaf in leaves(spec))
