"""A trained policy, taken out of its run to be used anywhere.

    policy = srl.load("runs/ppo__CartPole-v1__1__...")
    action, state = policy.predict(obs)                 # one observation, or a batch of them
    action, state = policy.predict(obs, state)          # recurrent: hand the state back in

Observations and actions are those of the environment: tuples for Tuple spaces, values from `start` for Discrete ones.
No environment is built and nothing is executed that the run folder chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from srl import runs
from srl.errors import UserError, nearest
from srl.experiment import Model, only
from srl.models.config import ActorCritic
from srl.models.outline import outline_of
from srl.params import file as checkpoints
from srl.settings import demand_trust
from srl.streams.base import Shapes
from srl.tree import Spec, leaves, seen, spec_from_plain, spec_of, tree_map, zeros


class Trained:
    """A policy with fixed weights."""

    def __init__(self, policy: Any, shapes: Shapes, meta: dict[str, Any]) -> None:
        self.policy = policy
        self.shapes = shapes
        self.meta = meta
        self._random = np.random.default_rng()

    def predict(self, obs: Any, state: Any = None, deterministic: bool = True, *, mask: Any = None) -> tuple[Any, Any]:
        """The action for an observation or a batch of them, and the recurrent state to pass in next time.

        Args:
            obs: What the environment observes; with a leading dimension, a batch. Of stacked frames all that the policy
                sees, oldest first along the last axis.
            state: What the last call returned; None at the start of an episode.
            deterministic: Take the most likely action instead of sampling.
            mask: Legal actions, where the environment gives them.
        """
        tree = _as_tree(obs, self.shapes.seen)
        if isinstance(self.shapes.obs, dict) and self.shapes.mask is not None and mask is None:
            mask = obs.get("action_mask") if isinstance(obs, dict) else None
        pairs = zip(leaves(tree), leaves(self.shapes.seen), strict=True)
        single = all(leaf.ndim == len(spec.shape) for (_, leaf), (_, spec) in pairs)
        request: dict[str, Any] = {"obs": tree_map(lambda leaf: leaf[None], tree) if single else tree}
        rows = len(next(iter(leaves(request["obs"])))[1])
        request["first"] = np.full(rows, state is None)
        request["state"] = zeros(self.shapes.state, rows) if state is None else state
        if mask is not None:
            request["mask"] = tree_map(lambda leaf: np.asarray(leaf, bool).reshape(rows, -1), mask)
        if not deterministic:
            request["noise"] = self._random.random((rows, self.shapes.noise), dtype=np.float32)
        reply = self.policy.act(request)
        action = _as_value(reply["action"], self.shapes.action)
        return (_first_row(action) if single else action), reply["state"]


def load(
    run: str | Path,
    which: str | None = None,
    *,
    policy: str | None = None,
    trust: Sequence[str] = (),
    runs_folder: str | Path = "runs",
) -> Trained:
    """A policy of a run: its best evaluated weights where there are any, else its latest.

    Args:
        run: The run folder, or its name within `runs_folder`.
        which: latest, best, or the name of a checkpoint.
        policy: The policy's name, where the run has several.
        trust: Modules outside srl that the run's settings may be imported from.
        runs_folder: Where runs are looked up by name.
    """
    found = runs.find(Path(runs_folder), str(run))
    experiment = found.experiment(*trust)
    name = policy or only(experiment.policies)[0]
    if name not in experiment.policies:
        raise UserError(f"{found.path} has no policy {name!r}{nearest(name, experiment.policies)}")
    folder = found.checkpoints(name)
    checkpoint = checkpoints.load(folder, which or ("best" if (folder / "best").exists() else "latest"))
    model = experiment.policies[name].model
    demand_trust(model, *trust)
    with checkpoint.fits():
        return _built(model, checkpoint)


def _built(model: Model, checkpoint: checkpoints.Checkpoint) -> Trained:
    plain = checkpoint.meta["spaces"]
    spaces = {key: spec_from_plain(plain[key]) for key in ("obs", "action", "mask")}
    weights = checkpoint.weights()
    if isinstance(model, ActorCritic):
        # Asked first, so that damaged settings or spaces do not build what no memory holds.
        numbers = outline_of(model, seen(spaces["obs"]), spaces["action"], spaces["mask"]).weights
        if numbers not in (None, sum(tensor.numel() for tensor in weights.values())):
            raise ValueError(f"its weights are not those of {numbers:,} numbers that the settings describe")
    built = model.build(seen(spaces["obs"]), spaces["action"], spaces["mask"])
    built.module.load_state_dict(weights)
    params = {key: spec_of(tensor.numpy()) for key, tensor in built.module.state_dict().items()}
    shapes = Shapes(**spaces, state=built.state, extras=built.extras, noise=built.noise, params=params)
    return Trained(built, shapes, checkpoint.meta)


def _as_tree(value: Any, spec: Any) -> Any:
    if isinstance(spec, dict):
        named = dict(enumerate(value)) if isinstance(value, tuple) else value
        return {
            key: _as_tree(named[int(key) if isinstance(value, tuple) else key], child) for key, child in spec.items()
        }
    array = np.asarray(value)
    start = np.reshape(spec.start, spec.shape) if spec.start else 0
    return np.asarray(array - start if spec.kind == "discrete" else array, dtype=spec.dtype, order="C")


def _as_value(tree: Any, spec: Any) -> Any:
    if isinstance(spec, dict):
        value = {key: _as_value(tree[key], child) for key, child in spec.items()}
        is_tuple = list(value) == [str(at) for at in range(len(value))]
        return tuple(value.values()) if is_tuple else value
    if spec.kind == "discrete":
        return tree + np.reshape(spec.start, spec.shape) if spec.start else tree
    return np.clip(tree, *_bounds(spec)) if spec.kind == "box" else tree


def _bounds(spec: Spec) -> list[Any]:
    shaped = [np.reshape(b, spec.shape) if isinstance(b, tuple) else b for b in (spec.low, spec.high)]
    return [np.asarray(bound, spec.dtype) for bound in shaped]


def _first_row(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_first_row(part) for part in value)
    if isinstance(value, dict):
        return {key: _first_row(part) for key, part in value.items()}
    return value[0]
