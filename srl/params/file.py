"""Weights and training state as files: a checkpoint is a folder that appears whole or not at all.

    checkpoints/step_000000409600/weights.safetensors   what acts
                                  training.pt           optimizer, generators, counters; plain data and tensors only
                                  meta.json             version, steps, the shapes a policy is built from
                                  SHA256SUMS            the digests of the three; see checksum.py
    checkpoints/latest, best      links

Written beside, synced, renamed: whoever is killed leaves what was there. The trainer saves and prunes what latest may
name, the evaluator what best may, so that none removes what another is saving. Loading executes nothing: safetensors,
JSON, and torch.load with weights_only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

import msgspec
import safetensors.torch
import torch

from srl.errors import UserError
from srl.files import contents, write_atomically
from srl.params.checksum import BEST, FORMAT, LANES, META, SUMS, TRAINING, WEIGHTS, find, in_order, steps_of, sums_of
from srl.tree import leaves


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    path: Path
    meta: dict[str, Any]

    def weights(self) -> dict[str, torch.Tensor]:
        """The tensors that act."""
        return self._read(WEIGHTS, safetensors.torch.load)

    def training(self, part: str = TRAINING) -> dict[str, Any]:
        """The state that training continues from; by its name, that of one rank."""
        return self._read(part, lambda data: torch.load(io.BytesIO(data), weights_only=True, map_location="cpu"))

    @contextlib.contextmanager
    def fits(self) -> Generator[None]:
        """Say that the checkpoint does not fit where what is built from it fails."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError) as error:
            raise UserError(f"{self.path} does not fit the run's settings: {_first_line(error)}") from error

    def _read(self, name: str, read: Callable[[bytes], Any]) -> Any:
        data = contents(self.path / name)
        try:
            return read(data)
        # A file that srl did not write makes its reader raise whatever there is.
        except Exception as error:
            raise UserError(f"cannot read {self.path / name}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


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
    final = _free_name(folder, f"step_{meta['steps']:012d}" + ("" if training is not None else BEST))
    tensors = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    files: dict[str, bytes | memoryview] = {
        WEIGHTS: safetensors.torch.save(tensors),
        META: msgspec.json.encode({"format": FORMAT, **meta}),
    }
    if training is not None:
        files[TRAINING] = _to_bytes(training)
    try:
        if training is not None and lanes is not None and lanes.is_dir():
            files |= {f"{LANES}/{path.name}": path.read_bytes() for path in sorted(lanes.iterdir())}
        _write(folder / f".{link}", files, final)
        _point(folder / link, final.name)
        _sync(folder)
    except OSError as error:
        shutil.rmtree(folder / f".{link}", ignore_errors=True)
        raise UserError(f"cannot save a checkpoint in {folder}: {error.strerror}; older ones are intact") from error
    return final


def save_part(path: Path, training: dict[str, Any]) -> None:
    """Write what one rank adds to a checkpoint, in the folder of lanes that becomes part of it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _to_bytes(training))
    except OSError as error:
        raise UserError(
            f"cannot save a checkpoint in {path.parent}: {error.strerror}; older ones are intact"
        ) from error


def _to_bytes(training: dict[str, Any]) -> memoryview:
    buffer = io.BytesIO()
    torch.save(training, buffer)
    return buffer.getbuffer()


def _write(partial: Path, files: dict[str, bytes | memoryview], final: Path) -> None:
    """Write a checkpoint beside, then let it appear."""
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, data in {**files, SUMS: sums_of(files)}.items():
        path = partial / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        _sync(path)
    for part in (partial / LANES, partial):
        if part.is_dir():
            _sync(part)
    partial.rename(final)
    _sync(final.parent)


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


def prune(
    folder: Path, link: str, keep: int, every: int | None = None, may_go: Callable[[str], bool] = lambda _: True
) -> None:
    """Remove a link's checkpoints but for the newest `keep` and the first after each `every` steps.

    What a link points to stays, and what may not go.
    """
    own = [path for path in in_order(folder) if (BEST in path.name) == (link == "best")]
    firsts = {steps_of(path) // every: path for path in reversed(own)} if every else {}
    stay = {(folder / name).resolve() for name in ("latest", "best")}
    stay |= {path.resolve() for number, path in firsts.items() if number > 0}
    for path in own[:-keep]:
        if path.resolve() not in stay and may_go(path.name):
            # Renamed first: whoever is killed while removing leaves nothing that looks like a checkpoint.
            with contextlib.suppress(OSError):
                path.rename(folder / f".{path.name}.pruned")
    for path in folder.glob(".step_*.pruned"):
        shutil.rmtree(path, ignore_errors=True)


def load(folder: Path, which: str) -> Checkpoint:
    """The checkpoint of a run that `which` names, if it is intact: latest, best, or a folder's name."""
    return Checkpoint(*find(folder, which))


def count_parameters(spec: dict[str, Any]) -> int:
    """Numbers in a set of weights."""
    return sum(leaf.size for _, leaf in leaves(spec))


class Start(Protocol):
    """Weights to start from."""

    @property
    def checkpoint(self) -> str:
        """The folder of a checkpoint."""
        ...

    @property
    def part(self) -> str:
        """How the names of those that are taken begin."""
        ...


def begin_with(init: Start, module: torch.nn.Module) -> str:
    """Load the weights of another run that fit; what did and what did not, in words."""
    path = Path(init.checkpoint)
    found, own = load(path.parent, path.name).weights(), module.state_dict()
    wanted = {name for name in own if name.startswith(init.part)}
    fits = {name: found[name] for name in wanted if name in found and found[name].shape == own[name].shape}
    if not fits:
        raise UserError(f"no weights of {path} fit this policy{f' in {init.part!r}' if init.part else ''}")
    module.load_state_dict({**own, **fits})
    left = sorted(wanted - fits.keys())
    rest = f"; these begin at random: {', '.join(left)}" if left else ""
    return f"begins with {len(fits)} of {len(wanted)} weights of {path}{rest}"
