"""Frames: stored once each, and stacked where they are looked at.

    stored   f0  f1 | f2  f3            row f2 is an episode's first
    seen     [.. f0] [f0 f1] [.. f2] [f2 f3]      with stack 2; what lies before the episode is 0

A stack of bytes is one integer per pixel, so moving on by one frame is a shift, and the newest frame is its highest
byte. As bytes in memory this is a last axis with the oldest frame first, which is the layout that convolutions like
best. This module must not know what the frames show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from srl.errors import UserError
from srl.tree import Array, Path, Spec, SpecTree, Tree, leaves, name_of, zeros

WORDS = {2: "<u2", 4: "<u4", 8: "<u8"}
"""The integer that holds a stack of so many bytes."""


def stacked_leaves(obs: SpecTree) -> Iterator[tuple[Path, Spec]]:
    """The leaves of an observation that are stacked."""
    for path, spec in leaves(obs):
        if spec.stack > 1:
            if spec.dtype != "uint8" or spec.stack not in WORDS:
                raise UserError(
                    f"the observation {name_of(path)!r} is to be stacked {spec.stack} times as {spec.dtype}; "
                    f"bytes can be, {', '.join(map(str, WORDS))} times"
                )
            yield path, spec


def before_spec(obs: SpecTree) -> dict[str, Any]:
    """What a segment keeps of the frames before its first row: their stack, by the name of each stacked leaf."""
    return {name_of(path): Spec((*spec.shape, spec.stack), "uint8") for path, spec in stacked_leaves(obs)}


def push(stack: Array, before: Array, newest: Array, first: Array) -> None:
    """Write into `stack` [B, ..., k] the stack `before` moved on by the frames `newest` [B, ...]."""
    count = stack.shape[-1]
    words, past = _words(stack), _words(before)
    np.right_shift(past, 8, out=words)
    if first.any():
        words[first] = 0
    words |= np.left_shift(newest, 8 * (count - 1), dtype=words.dtype)


def _words(stack: Array) -> Array:
    return stack.view(WORDS[stack.shape[-1]])[..., 0]


def stacked(obs: SpecTree, before: dict[str, Any], at: Path = ()) -> Any:
    """The specs of observations [T, B, ...] once their frames are stacked; `before` names those that are."""
    if isinstance(obs, dict):
        return {key: stacked(child, before, (*at, key)) for key, child in obs.items()}
    name = name_of(at)
    return Spec((*obs.shape, before[name].shape[-1]), obs.dtype) if name in before else obs


def stack_into(target: Tree, obs: Tree, first: Array, before: dict[str, Array], at: Path = ()) -> None:
    """Write observations [T, B, ...] into `target`, frames as stacks that begin with those before the first row."""
    if isinstance(target, dict):
        assert isinstance(obs, dict)
        for key, child in target.items():
            stack_into(child, obs[key], first, before, (*at, key))
    elif name_of(at) in before:
        past = before[name_of(at)]
        assert not isinstance(obs, dict)
        for stack, newest, starts in zip(target, obs, first, strict=True):
            push(stack, past, newest, starts)
            past = stack
    else:
        target[...] = obs


class Stacks:
    """The observations of a batch of environments as a policy sees them, row by row of time."""

    def __init__(self, obs: SpecTree, rows: int) -> None:
        self._paths = {name_of(path): path for path, _ in stacked_leaves(obs)}
        self.stacks: dict[str, Any] = zeros(before_spec(obs), rows)

    def push(self, obs: Tree, first: Array) -> Tree:
        """What is seen of the next observations; valid until the next push."""
        if not self.stacks:
            return obs
        for name, path in self._paths.items():
            push(self.stacks[name], self.stacks[name], leaf_at(obs, path), first)
        return replaced(obs, self._paths, self.stacks)


def leaf_at(tree: Any, path: Path) -> Any:
    """The leaf at a path."""
    for key in path:
        tree = tree[key]
    return tree


def replaced(obs: Tree, paths: dict[str, Path], stacks: dict[str, Array], at: Path = ()) -> Any:
    """The observations with the stacks in the place of the frames."""
    if isinstance(obs, dict):
        return {key: replaced(child, paths, stacks, (*at, key)) for key, child in obs.items()}
    name = name_of(at)
    return stacks[name] if name in paths else obs
