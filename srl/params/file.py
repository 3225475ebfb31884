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
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch

from srl.errors import UserError
from srl.tree import Spec, leaves

FORMAT = 1
"""Version of what a checkpoint folder holds."""


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
    folder: Path, weights: dict[str, torch.Tensor], meta: dict[str, Any], training: dict[str, Any] | None, link: str
) -> Path:
    """Write a checkpoint and point `link` (latest or best) to it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"step_{meta['steps']:012d}" + ("" if training is not None else f"_{link}")
    partial = folder / f".{name}.{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    safetensors.torch.save_file(tensors, partial / "weights.safetensors")
    if training is not None:
        torch.save(training, partial / "training.pt")
    (partial / "meta.json").write_bytes(msgspec.json.encode({"format": FORMAT, **meta}))
    for path in partial.iterdir():
        _sync(path)
    final = folder / name
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    _point(folder / link, name)
    _sync(folder)
    return final


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _point(link: Path, name: str) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)


def prune(folder: Path, keep: int) -> None:
    """Remove the oldest checkpoints; what `latest` and `best` point to stays."""
    linked = {(folder / link).resolve() for link in ("latest", "best")}
    for path in sorted(folder.glob("step_*"))[:-keep]:
        if path.resolve() not in linked:
            shutil.rmtree(path)


def load(folder: Path, which: str) -> Checkpoint:
    """The checkpoint of a run that `which` names: latest, best, or a folder's name."""
    path = folder / which
    try:
        meta = msgspec.json.decode((path / "meta.json").read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        known = ", ".join(sorted(p.name for p in folder.glob("*") if not p.name.startswith("."))) or "none"
        raise UserError(f"no checkpoint {which!r} in {folder}; there are: {known}") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{path / 'meta.json'} is damaged: {error}") from error
    if meta.get("format") != FORMAT:
        raise UserError(f"{path} has format {meta.get('format')}, and this version of srl reads {FORMAT}")
    return Checkpoint(path.resolve(), meta)


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
