"""Trees of torch tensors: the few moves that every model needs.

This module must not know what the leaves mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from srl.tree import Array, Path, tree_map


def at(tree: Any, path: Path) -> Any:
    """The leaf or subtree at a path."""
    for key in path:
        tree = tree[key]
    return tree


def to_torch(array: Array) -> Tensor:
    """The tensor over an array's memory; a copy when the array is read-only, which torch cannot express."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_numpy(tensor: Tensor) -> Array:
    """The array over a tensor's memory, or over a copy when the tensor is on another device."""
    return tensor.cpu().numpy()


def merge_time(tree: Any) -> Any:
    """Leaves [T, B, ...] as rows [T * B, ...]."""

    def one(leaf: Tensor) -> Tensor:
        return leaf.flatten(0, 1)

    return tree_map(one, tree)
