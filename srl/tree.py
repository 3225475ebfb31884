"""Trees: nested dicts of arrays, their specs, and their layout in one block of memory.

A tree is an array or a dict of trees. A spec tree has the same shape with a Spec at each leaf. A Layout places every
leaf of a spec tree in one contiguous buffer, so that a step, a segment or a set of weights is one block: written in
place, mapped from shared memory, sent as one frame.

This module must not know what the trees mean: no torch, no environments, no streams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, overload

import msgspec
import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Tree: TypeAlias = "Array | dict[str, Tree]"
Path: TypeAlias = tuple[str, ...]

ALIGNMENT = 64
"""Leaves start at multiples of a cache line, which is also what vector instructions like best."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What one leaf holds: shape and dtype, and for spaces also the meaning of its numbers."""

    shape: tuple[int, ...]
    dtype: str
    kind: Literal["box", "discrete", "binary"] = "box"
    n: tuple[int, ...] = ()
    """For discrete leaves: the number of choices of each element, in C order."""
    start: tuple[int, ...] = ()
    """For discrete leaves: the value the environment gives to choice 0 of each element."""
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    stack: int = 1
    """How many of the newest a policy sees at once, the oldest first along a last axis of its own."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one such leaf."""
        return self.size * np.dtype(self.dtype).itemsize


SpecTree: TypeAlias = "Spec | dict[str, SpecTree]"


def leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Each leaf with its path, in the order of the dicts."""
    if isinstance(tree, dict):
        for key, child in tree.items():
            yield from leaves(child, (*path, key))
    else:
        yield path, tree


@overload
def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any: ...
@overload
def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any: ...
def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """The tree of fn(leaf, *other_leaves); the other trees must have at least the keys of the first."""
    if not isinstance(tree, dict):
        return fn(tree, *rest)
    if not rest:  # which is most common, and has no need to look for others at every key
        return {key: tree_map(fn, child) for key, child in tree.items()}
    return {key: tree_map(fn, child, *(other[key] for other in rest)) for key, child in tree.items()}


def name_of(path: Path) -> str:
    """A path as people write it."""
    return "/".join(path) or "(root)"


def seen(spec: SpecTree) -> Any:
    """The specs as a policy sees them: what is stacked has its last axis."""
    return tree_map(
        lambda leaf: replace(leaf, shape=(*leaf.shape, leaf.stack), stack=1) if leaf.stack > 1 else leaf, spec
    )


def batched(spec: SpecTree, *lead: int) -> Any:
    """The same specs with more leading dimensions."""
    return tree_map(lambda leaf: replace(leaf, shape=(*lead, *leaf.shape)), spec)


def zeros(spec: SpecTree, *lead: int) -> Any:
    """Arrays of zeros for a spec tree, with optional leading dimensions."""
    return tree_map(lambda leaf: np.zeros((*lead, *leaf.shape), leaf.dtype), spec)


def spec_of(tree: Tree) -> Any:
    """The specs of existing arrays."""
    return tree_map(lambda leaf: Spec(tuple(leaf.shape), str(leaf.dtype)), tree)


def spec_to_plain(spec: Any) -> Any:
    """A spec tree as plain data, to be kept or to travel; bounds as text, because JSON has no infinity."""
    if spec is None:
        return None
    if isinstance(spec, Spec):
        bounds = {name: [str(float(x)) for x in _as_tuple(getattr(spec, name))] for name in ("low", "high")}
        return {**msgspec.to_builtins(spec), **bounds}
    return {"tree": {key: spec_to_plain(child) for key, child in spec.items()}}


def spec_from_plain(data: Any) -> Any:
    """The spec tree that plain data describes; ValueError for one that contradicts itself."""
    if data is None:
        return None
    if set(data) == {"tree"}:
        return {key: spec_from_plain(child) for key, child in data["tree"].items()}
    bounds = {name: tuple(float(x) for x in data[name]) for name in ("low", "high")}
    flat = {name: bound[0] if len(bound) == 1 else bound for name, bound in bounds.items()}
    spec = msgspec.convert({**data, **flat}, Spec)
    known = np.dtype(spec.dtype).kind in "biuf" and min(spec.shape, default=0) >= 0 and spec.stack >= 1
    sizes = {len(spec.n), len(spec.start)} - {0, spec.size} | {len(bound) for bound in bounds.values()} - {1, spec.size}
    if not known or sizes:
        raise ValueError(f"no space is like {spec}")
    return spec


def _as_tuple(bound: float | tuple[float, ...]) -> tuple[float, ...]:
    return bound if isinstance(bound, tuple) else (bound,)


def copy_into(target: Tree, source: Tree) -> None:
    """Copy every leaf of source over the leaf of the same path in target."""
    if isinstance(target, dict):
        assert isinstance(source, dict)
        for key, child in target.items():
            copy_into(child, source[key])
    else:
        target[...] = source


def index(tree: Tree, at: Any) -> Any:
    """The tree of leaf[at]; views where numpy gives views."""
    if isinstance(tree, dict):
        return {key: index(child, at) for key, child in tree.items()}
    return tree[at]


@dataclass(frozen=True)
class Layout:
    """Where each leaf of a spec tree lies in one contiguous buffer."""

    spec: SpecTree
    offsets: tuple[int, ...] = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        offsets: list[int] = []
        end = 0
        for _, leaf in leaves(self.spec):
            offsets.append(end)
            end += -(-leaf.nbytes // ALIGNMENT) * ALIGNMENT
        object.__setattr__(self, "offsets", tuple(offsets))
        object.__setattr__(self, "nbytes", end)

    def view(self, buffer: Any, start: int = 0) -> Any:
        """The tree of arrays that lie in buffer, no byte copied."""
        offsets = iter(self.offsets)

        def one(leaf: Spec) -> Array:
            return np.ndarray(leaf.shape, leaf.dtype, buffer, start + next(offsets))

        return tree_map(one, self.spec)
