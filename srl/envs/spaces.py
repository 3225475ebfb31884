"""Gymnasium spaces seen as trees: their specs, observations written into arrays, actions read out of them.

    Box, Discrete, MultiDiscrete, MultiBinary   a leaf
    Dict                                        a dict by key
    Tuple                                       a dict with the keys "0", "1", ...

Choices in trees count from 0, and floats are 32 bits wide; what the environment itself wants (a start, float64, a
tuple) is added and taken away here and nowhere else. This module must not know how environments are built or stepped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from types import EllipsisType
from typing import Any, Protocol

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from srl.errors import UserError
from srl.tree import Array, Path, Spec, SpecTree, Tree, name_of

Row = int | EllipsisType
"""Where a value goes: the row of one environment, or all rows at once."""


def children(space: Any) -> Iterator[tuple[str, Any, Space[Any]]]:
    """Each part of a Dict or Tuple: its key in trees, its key in the environment's own values, and its space."""
    parts: Any = space.spaces
    keyed: Any = parts.items() if isinstance(space, Dict) else enumerate(parts)
    for key, child in keyed:
        yield str(key), key, child


def spec_of_space(space: Space[Any], what: str, path: Path = ()) -> SpecTree:
    """The spec tree of a space; `what` is how an error names it."""
    known: Any = space  # Gymnasium types its spaces only in part
    if isinstance(space, Dict | Tuple):
        return {name: spec_of_space(child, what, (*path, name)) for name, _, child in children(known)}
    if isinstance(space, Box):
        return Spec(known.shape, _dtype(known), low=_bound(known.low), high=_bound(known.high))
    if isinstance(space, Discrete):
        return Spec((), "int64", "discrete", (int(known.n),), (int(known.start),))
    if isinstance(space, MultiDiscrete):
        return Spec(known.shape, "int64", "discrete", _ints(known.nvec), _ints(known.start))
    if isinstance(space, MultiBinary):
        return Spec(known.shape, "int8", "binary")
    raise UserError(
        f"{what} {name_of(path)} is a {type(space).__name__} space; use Box, Discrete, MultiDiscrete, MultiBinary, "
        "or a Dict or Tuple of them"
    )


def _dtype(space: Any) -> str:
    return "float32" if space.dtype == np.float64 else str(space.dtype)


def _bound(values: Array) -> float | tuple[float, ...]:
    if values.size and (values == values.flat[0]).all():
        return float(values.flat[0])
    return tuple(float(value) for value in values.flat)


def _ints(values: Array) -> tuple[int, ...]:
    return tuple(int(value) for value in values.flat)


class Observations:
    """Writes the observations of one environment, or with `lead=(size,)` of a vector of them, into arrays."""

    write: Callable[[Any, Row, Any], None]
    """write(target, at, value): puts a value of the space at row `at` of the target tree."""

    def __init__(self, space: Space[Any], name: str, lead: tuple[int, ...] = ()) -> None:
        self._name = name
        self._leaves: list[tuple[Path, tuple[Any, ...], _Leaf]] = []
        self._collect(space, (), (), lead)
        # A lone leaf is by far the most common: no walk through the tree for it.
        self.write = self._leaves[0][2].write if not isinstance(space, Dict | Tuple) else self._write_tree

    def _collect(self, space: Space[Any], path: Path, keys: tuple[Any, ...], lead: tuple[int, ...]) -> None:
        if isinstance(space, Dict | Tuple):
            for name, key, child in children(space):
                self._collect(child, (*path, name), (*keys, key), lead)
            return
        where = f"{self._name}: observation {name_of(path)}"
        spec = spec_of_space(space, where)
        assert isinstance(spec, Spec)
        if spec.kind != "discrete":
            leaf: _Leaf = _Values(spec, where, lead)
        elif spec.shape or lead:
            leaf = _Choices(spec, where, lead)
        else:
            leaf = _Choice(spec, where)
        self._leaves.append((path, keys, leaf))

    def _write_tree(self, target: Any, at: Row, value: Any) -> None:
        for path, keys, leaf in self._leaves:
            array, part = target, value
            for name in path:
                array = array[name]
            try:
                for key in keys:
                    part = part[key]
            except (KeyError, IndexError, TypeError) as error:
                got = sorted(map(str, value)) if value.__class__ is dict else type(value).__name__
                raise UserError(f"{self._name}: observation has no {name_of(path)}; got {got}") from error
            leaf.write(array, at, part)


class _Leaf(Protocol):
    def write(self, target: Array, at: Row, value: Any) -> None: ...


class _Values:
    """A Box or MultiBinary leaf, or an array of integers that is to become choices."""

    def __init__(self, spec: Spec, where: str, lead: tuple[int, ...]) -> None:
        self.shape = (*lead, *spec.shape)
        self.dtype = np.dtype(spec.dtype)
        self.where = where
        self._accepted: set[np.dtype[Any]] = {self.dtype}

    def write(self, target: Array, at: Row, value: Any) -> None:
        # Said here and not in a call: this line runs once per environment and step.
        if value.__class__ is np.ndarray and value.dtype is self.dtype and value.shape == self.shape:
            target[at] = value
        else:
            target[at] = self.checked(value)

    def checked(self, value: Any) -> Array:
        """The value as an array; assignment alone would broadcast a wrong shape and cut floats to integers."""
        value = np.asarray(value)
        if value.shape != self.shape:
            raise UserError(f"{self.where} has shape {value.shape}; its space says {self.shape}")
        if value.dtype not in self._accepted:
            self._accept(value.dtype)
        return value

    def _accept(self, dtype: np.dtype[Any]) -> None:
        if not np.can_cast(dtype, self.dtype, "same_kind"):
            raise UserError(f"{self.where} has dtype {dtype}; its space says {self.dtype}")
        self._accepted.add(dtype)


class _Choices(_Values):
    """A MultiDiscrete leaf, or the Discrete leaves of a vector of environments."""

    def __init__(self, spec: Spec, where: str, lead: tuple[int, ...]) -> None:
        super().__init__(spec, where, lead)
        self._n = np.array(spec.n).reshape(spec.shape)
        self._start = np.array(spec.start).reshape(spec.shape)

    def write(self, target: Array, at: Row, value: Any) -> None:
        value = self.checked(value)
        choice = value.astype(np.int64) - self._start
        if ((choice < 0) | (choice >= self._n)).any():
            raise UserError(f"{self.where} is outside its space: {value.tolist()}")
        target[at] = choice


class _Choice:
    """A Discrete leaf of one environment."""

    def __init__(self, spec: Spec, where: str) -> None:
        self._n = spec.n[0]
        self._start = spec.start[0]
        self._where = where

    def write(self, target: Array, at: Row, value: Any) -> None:
        try:
            choice = operator.index(value) - self._start
        except TypeError as error:
            raise UserError(f"{self._where} is {value!r}; its space says an integer") from error
        if not 0 <= choice < self._n:
            raise UserError(f"{self._where} is outside its space: {value}")
        target[at] = choice


def action_batch(space: Space[Any], tree: Tree) -> Any:
    """The actions of all rows as a vector environment takes them; always fresh memory, which it may keep."""
    if isinstance(space, Dict):
        return {key: action_batch(child, tree[name]) for name, key, child in children(space)}
    if isinstance(space, Tuple):
        return tuple(action_batch(child, tree[name]) for name, _, child in children(space))
    known: Any = space
    values: Any = np.array(tree, known.dtype)
    if isinstance(space, Box):
        return np.minimum(np.maximum(values, known.low), known.high)
    if isinstance(space, Discrete | MultiDiscrete):
        values += known.start
    return values


def action_rows(space: Space[Any], tree: Tree) -> list[Any]:
    """The actions of all rows, each as a single environment takes it."""
    return _rows(space, action_batch(space, tree))


def _rows(space: Space[Any], batch: Any) -> list[Any]:
    if isinstance(space, Discrete):
        return batch.tolist()
    if isinstance(space, Dict):
        keys = [key for _, key, _ in children(space)]
        columns = [_rows(child, batch[key]) for _, key, child in children(space)]
        return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(space, Tuple):
        return list(zip(*(_rows(child, batch[key]) for _, key, child in children(space)), strict=True))
    # Iterating over an array of numbers would give bare numbers, which are not in a Box without axes.
    return [batch[row, ...] for row in range(len(batch))]
