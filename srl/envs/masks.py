"""Action masks: which choices are legal, found in what environments say and written into arrays of bools.

An environment gives its mask as the entry "action_mask" of its observation dict, which the policy then does not see,
or of its info. The mask has the structure of the action space; only its discrete leaves count, and None or a missing
entry for one of those leaves means that all of its choices are legal. The mask of a leaf is one flat array: the choices
of the first element, then those of the second. This module must not know how environments are stepped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict, Tuple

from srl.envs.spaces import children, spec_of_space
from srl.errors import UserError
from srl.tree import Array, Path, Spec, SpecTree, name_of

KEY = "action_mask"
"""The entry of an observation or an info that holds the mask."""


def mask_spec(action: SpecTree) -> Any:
    """The spec tree of masks for an action spec tree, or None when it has no discrete leaf."""
    if isinstance(action, Spec):
        return Spec((sum(action.n),), "bool", "binary") if action.kind == "discrete" else None
    kept = {name: mask_spec(child) for name, child in action.items()}
    return {name: child for name, child in kept.items() if child is not None} or None


def find_masks(
    observation: Any, action: Space[Any], first_info: Callable[[], dict[str, Any]], name: str
) -> Masks | None:
    """The masks an environment gives, if any; `first_info` is the info of a reset, made only where it may hold one."""
    if mask_spec(spec_of_space(action, f"{name}: action")) is None:
        return None
    if isinstance(observation, Dict) and KEY in (key for _, key, _ in children(observation)):
        return Masks(action, from_info=False, name=name)
    return Masks(action, from_info=True, name=name) if KEY in first_info() else None


def seen_space(observation: Any, masks: Masks | None, name: str) -> Any:
    """The observation space as the policy sees it: without the mask."""
    if masks is None or masks.from_info or not isinstance(observation, Dict):
        return observation
    seen: dict[Any, Space[Any]] = {key: child for _, key, child in children(observation) if key != KEY}
    if not seen:
        raise UserError(f"{name}: the observation holds nothing but {KEY!r}; add what the policy is to see")
    return Dict(seen)


class Masks:
    """Writes the masks of environments into the arrays of a mask tree."""

    def __init__(self, action_space: Space[Any], from_info: bool, name: str) -> None:
        self.spec: SpecTree = mask_spec(spec_of_space(action_space, f"{name}: action"))
        self.from_info = from_info
        self._name = name
        self._leaves: list[tuple[Path, tuple[Any, ...], _Leaf]] = []
        self._collect(action_space, (), ())

    def write_row(self, target: Any, i: int, obs: Any, info: dict[str, Any]) -> None:
        """Write the mask of one environment at row i."""
        value = self._given(obs, info)
        for array, part, leaf in self._walk(target, value):
            array[i] = True if part is None else leaf.flat(part, ())

    def write_rows(self, target: Any, obs: Any, info: dict[str, Any], rows: Array) -> None:
        """Write the masks of a vector of environments at the rows that are True in `rows`."""
        if not rows.any():
            return
        value = self._given(obs, info)
        given = info.get(f"_{KEY}", rows) if self.from_info else rows
        if (rows & ~given).any():
            raise UserError(f"{self._name}: no info[{KEY!r}] for environments {np.flatnonzero(rows & ~given).tolist()}")
        for array, part, leaf in self._walk(target, value):
            array[rows] = True if part is None else leaf.rows(part, rows)

    def allow(self, target: Any, at: Any) -> None:
        """Make everything legal at rows whose action is ignored: a finished game has no legal action."""
        for array, _, _ in self._walk(target, None):
            array[at] = True

    def check(self, target: Any) -> None:
        """Refuse rows where some element of the action has no legal choice."""
        for array, _, leaf in self._walk(target, None):
            legal = np.logical_or.reduceat(array, leaf.offsets, axis=1).all(axis=1)
            if not legal.all():
                row = int(np.argmin(legal))
                raise UserError(f"{leaf.where} of environment {row} has no legal action; it must allow at least one")

    def _collect(self, space: Space[Any], path: Path, keys: tuple[Any, ...]) -> None:
        if isinstance(space, Dict | Tuple):
            for name, key, child in children(space):
                self._collect(child, (*path, name), (*keys, key))
            return
        spec = spec_of_space(space, self._name)
        if isinstance(spec, Spec) and spec.kind == "discrete":
            self._leaves.append((path, keys, _Leaf(spec.n, f"{self._name}: {KEY} {name_of(path)}")))

    def _given(self, obs: Any, info: dict[str, Any]) -> Any:
        if not self.from_info:
            return obs[KEY]
        if KEY not in info:
            raise UserError(
                f"{self._name}: no info[{KEY!r}] in this step, though the first reset had one; give it always"
            )
        return info[KEY]

    def _walk(self, target: Any, value: Any) -> list[tuple[Array, Any, _Leaf]]:
        found: list[tuple[Array, Any, _Leaf]] = []
        for path, keys, leaf in self._leaves:
            array, part = target, value
            for name, key in zip(path, keys, strict=True):
                array = array[name]
                part = _part(part, key)
            found.append((array, part, leaf))
        return found


def _part(value: Any, key: Any) -> Any:
    try:
        return None if value is None else value[key]
    except KeyError:
        return None


class _Leaf:
    """The mask of one discrete leaf: where each of its elements' choices start, and how many there are."""

    def __init__(self, n: tuple[int, ...], where: str) -> None:
        self.total = sum(n)
        self.offsets = np.cumsum((0, *n[:-1]))
        self.where = where

    def flat(self, value: Any, lead: tuple[int, ...]) -> Array:
        """The mask as one flat row, or with `lead` as that many rows."""
        parts: Any = value if value.__class__ in (tuple, list) else ()
        if len(parts) and np.ndim(parts[0]) > len(lead):
            joined: Any = np.concatenate([np.reshape(part, (*lead, -1)) for part in parts], axis=-1)
        else:
            joined = np.asarray(value)
            joined = joined.reshape(*lead, -1) if joined.shape[: len(lead)] == lead else joined
        if joined.shape != (*lead, self.total):
            raise UserError(f"{self.where} has shape {np.shape(joined)}; its action says {(*lead, self.total)}")
        return joined != 0

    def rows(self, value: Any, rows: Array) -> Array:
        """The masks of the rows that are True in `rows`, from what a vector environment gives for all of them."""
        if value.__class__ is np.ndarray and value.dtype.hasobject:
            return np.stack([self.flat(one, ()) for one in value[rows]])
        return self.flat(value, (len(rows),))[rows]
