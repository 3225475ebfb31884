"""Saving: what becomes a checkpoint, where it lies, and which of them stay."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srl.errors import UserError
from srl.experiment import Experiment
from srl.params import file as files
from srl.store import Store
from srl.streams.base import Shapes
from srl.tree import spec_to_plain


class Saver:
    """Writes the checkpoints of one run."""

    def __init__(self, experiment: Experiment, shapes: Mapping[str, Shapes], folder: Path) -> None:
        self._experiment = experiment
        self._shapes = shapes
        self._folder = folder

    def save(self, name: str, weights: Any, meta: dict[str, Any], training: Any, link: str) -> str:
        """Write a checkpoint of a policy, named latest or best; the digest of its weights."""
        shapes = self._shapes[name]
        spaces = {key: spec_to_plain(getattr(shapes, key)) for key in ("obs", "action", "mask")}
        digest = files.sha256_of(weights)
        meta = {**meta, "policy": name, "spaces": spaces, "weights_sha256": digest}
        folder, store = self.checkpoints(name), Store(self._folder / "store.sqlite")
        lanes = self.lanes(name, meta["version"])
        path = files.save(folder, weights, meta, training, link, lanes=lanes)
        shutil.rmtree(lanes.parent, ignore_errors=True)
        keep = 1 if training is None else self._experiment.keep
        every = self._experiment.keep_every
        try:
            store.add_version(name, meta["version"], meta["steps"], meta.get("seconds"), meta.get("reward"), path.name)
            files.prune(folder, link, keep, every, may_go=lambda gone: store.forget(name, gone))
        except UserError as error:
            # Without its store a run goes on, and keeps every checkpoint, because one may be tagged.
            print(f"srl: {error}", file=sys.stderr)
        return digest

    def checkpoints(self, policy: str) -> Path:
        """Where the checkpoints of a policy are."""
        return self._folder / "checkpoints" / policy

    def lanes(self, policy: str, version: int) -> Path:
        """Where the lanes keep how they stand, until the checkpoint of the version takes it up."""
        return self.checkpoints(policy) / ".lanes" / str(version)

    def best_reward(self, policy: str) -> float:
        """The reward of the best weights that are kept, when a run goes on."""
        folder = self.checkpoints(policy)
        if not (folder / "best").exists():
            return -math.inf
        try:
            return float(files.load(folder, "best").meta["mean_reward"])
        except UserError as error:
            print(f"srl: {error}; the next that is evaluated is the best", file=sys.stderr)
            return -math.inf
