"""Environments that write into arrays of their own, as PufferLib's do, as one EnvBatch.

    num_agents rows; single_observation_space, single_action_space
    observations, rewards, terminals, truncations, masks   the arrays that reset(seed) and step(actions) write into

A row of a segment is new memory at every step. One that promises `buffers_move = True` is handed that memory before
every step, by these attributes, and nothing is copied: it must look its arrays up in each step and write the whole of
every observation, because what is there before is old. Others, as all whose C code was given pointers once, keep their
arrays, and each step is copied out of them once.

They reset themselves within the step that ends an episode and keep its final observation to themselves. Three things
follow. The row after an end shows the next episode's first observation, and the step that is played in it is lost to
learning; its reward counts in the return. A truncated episode has nothing to take a value from, so it is given both
flags and learned from as terminated: what lies beyond a time limit counts as worth 0. And one that ends episodes
without setting a flag, as some do at a time limit, makes one endless episode of them, which nobody can see from here.

This module must not know how an environment was found, nor who steps an EnvBatch.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from srl.envs.faults import Unusable
from srl.envs.gym import seeds
from srl.envs.spaces import action_batch, spec_of_space
from srl.errors import UserError
from srl.tree import Array, Spec, SpecTree, Tree

_ARRAYS = {"obs": "observations", "reward": "rewards", "terminated": "terminals", "truncated": "truncations"}
"""What a step writes, and the environment's attribute for it."""
_NEEDED = (*_ARRAYS.values(), "num_agents", "single_observation_space", "single_action_space")


def writes_in_place(made: Any) -> bool:
    """Whether this is an environment of that shape."""
    return all(hasattr(made, name) for name in _NEEDED)


class InPlace:
    """An environment of many rows that writes into arrays."""

    frames_per_step = 1
    scored = False
    kept = ("_env", "_ended")

    def __init__(self, env: Any, name: str) -> None:
        self.size: int = env.num_agents
        self._env = env
        self._name = name
        self.obs: SpecTree = _leaf(env.single_observation_space, f"{name}: observation")
        self.action: SpecTree = spec_of_space(env.single_action_space, f"{name}: action")
        self.mask: SpecTree | None = None
        self._own: dict[str, Array] = {key: getattr(env, name) for key, name in _ARRAYS.items()}
        self._check_arrays()
        self._moves = getattr(env, "buffers_move", False) and self._own["obs"].dtype == self.obs.dtype
        self._ended = np.zeros(self.size, bool)
        self._warned = False

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row."""
        self._lend({"obs": out["obs"]})
        self._env.reset(seed=seeds(seed, 1)[0])
        self._take({"obs": out["obs"]})
        self._refuse_absent()
        self._ended = np.zeros(self.size, bool)

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row; those that end begin again by themselves."""
        written = {key: out[key] for key in _ARRAYS}
        for key in ("reward", "terminated", "truncated"):
            written[key][:] = 0
        self._lend(written)
        self._env.step(action_batch(self._env.single_action_space, action))
        self._take(written)
        self._refuse_absent()
        out["terminated"] |= out["truncated"]
        self._ended = self._forget(out, self._ended & out["terminated"])

    def render(self) -> Array | None:
        """What the environment draws, if that is a picture."""
        frame = self._env.render()
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        """Close the environment, which gives back what was handed to it."""
        self._lend(self._own)
        self._env.close()

    def _lend(self, arrays: dict[str, Array]) -> None:
        if self._moves:
            for key, array in arrays.items():
                setattr(self._env, _ARRAYS[key], array)

    def _take(self, arrays: dict[str, Array]) -> None:
        if not self._moves:
            for key, array in arrays.items():
                array[...] = self._own[key]

    def _forget(self, out: dict[str, Any], lost: Array) -> Array:
        """Leave out the episodes that began and ended within a reset row; says which rows have the next reset row."""
        if lost.any():
            for name in ("reward", "terminated", "truncated"):
                out[name][lost] = 0
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"{self._name}: an episode began and ended within a reset row; such episodes are left out",
                    stacklevel=4,
                )
        return out["terminated"].copy()

    def _check_arrays(self) -> None:
        assert isinstance(self.obs, Spec)
        shapes = {"obs": self.obs.shape, "reward": (), "terminated": (), "truncated": ()}
        for key, shape in shapes.items():
            if self._own[key].shape != (self.size, *shape):
                raise UserError(
                    f"{self._name}: {_ARRAYS[key]} has shape {self._own[key].shape}; "
                    f"num_agents and the space say {(self.size, *shape)}"
                )

    def _refuse_absent(self) -> None:
        present = getattr(self._env, "masks", None)
        if present is not None and not present.all():
            raise Unusable(
                f"{self._name}: masks say that agents {np.flatnonzero(~present).tolist()} are absent; "
                "agents that come and go cannot be served yet"
            )


def _leaf(space: Any, what: str) -> Spec:
    spec = spec_of_space(space, what)
    if not isinstance(spec, Spec) or spec.kind != "box":
        raise UserError(f"{what} is a {type(space).__name__} space; an environment that writes in place has a Box")
    return spec
