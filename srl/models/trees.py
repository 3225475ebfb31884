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


def merge_time(tree: Any) -> Any:
    """Leaves [T, B, ...] as rows [T * B, ...]."""
    return tree_map(lambda leaf: leaf.flatten(0, 1), tree)
