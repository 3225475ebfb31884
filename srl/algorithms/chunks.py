"""Chunks: a batch [T, B] cut along time where a recurrent state is known.

    rows [T, B]      B columns             [T/K, K*B]
    +-----------+                          +----+----+
    |  chunk 0  |  <- state[0]             |    |    |
    +-----------+                    ->    | 0  | 1  |   state[:K] becomes [K*B]
    |  chunk 1  |  <- state[1]             |    |    |
    +-----------+  <- state[K]             +----+----+

A feedforward policy needs no state, so each of its rows is a chunk of its own. Must not know what is learned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from srl.algorithms.base import Batch, Evaluation, Policy
from srl.errors import UserError
from srl.tree import index, leaves, tree_map


@dataclass(frozen=True)
class Chunks:
    """Rows of a batch as chunks side by side."""

    rows: dict[str, Any]
    """Trees [L, N, ...]: L rows of N chunks."""
    state: Any
    """The state before row 0 of each chunk, [N, ...]; {} when feedforward."""

    @classmethod
    def cut(cls, batch: Batch, **more: Tensor) -> Chunks:
        """What evaluate needs of a batch, and any more [T, B], as chunks."""
        steps = len(batch["valid"])
        count = _count(batch)

        def split(leaf: Tensor) -> Tensor:
            leaf = leaf[:steps]
            return leaf.reshape(count, -1, *leaf.shape[1:]).transpose(0, 1).flatten(1, 2)

        def side_by_side(leaf: Tensor) -> Tensor:
            return leaf[:count].flatten(0, 1)

        known = {name: batch[name] for name in ("obs", "action", "mask", "first", "valid") if name in batch}
        return cls(tree_map(split, known | more), tree_map(side_by_side, batch.get("state", {})))

    def take(self, columns: Tensor) -> Chunks:
        """These chunks alone."""

        def row(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, columns)

        def state(leaf: Tensor) -> Tensor:
            return leaf.index_select(0, columns)

        return Chunks(tree_map(row, self.rows), tree_map(state, self.state))

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator[Chunks]:
        """All chunks with a valid row, in random order, in count parts of nearly equal size (fewer if chunks lack).

        Single rows come without "valid": all that are left are.
        """
        rows = dict(self.rows)
        useful = rows["valid"].any(0).nonzero().squeeze(1)
        if len(rows["valid"]) == 1:
            del rows["valid"]
        chunks = Chunks(rows, self.state)
        order = torch.randperm(len(useful), generator=generator).to(useful.device)
        for columns in useful[order].tensor_split(min(count, len(useful))):
            yield chunks.take(columns)

    def evaluate(self, policy: Policy) -> Evaluation:
        """The policy's view of these rows, [L, N]."""
        rows = self.rows
        return policy.evaluate(rows["obs"], rows["action"], rows.get("mask"), rows["first"], self.state)


def _count(batch: Batch) -> int:
    """Number of chunks one behind the other: the recorded states less the last, or one per row without states."""
    steps = len(batch["valid"])
    state = next((leaf for _, leaf in leaves(batch.get("state", {}))), None)
    if state is None:
        return steps
    count = len(state) - 1
    if count < 1 or steps % count:
        raise UserError(
            f"a segment of {steps} rows cannot be cut in {count} chunks: make its length a multiple of chunk"
        )
    return count


def joined(leaf: Tensor, batch: Batch) -> Tensor:
    """[L, N] of all chunks of a batch back as [T, B]."""
    count = _count(batch)
    return leaf.reshape(len(leaf), count, -1).transpose(0, 1).flatten(0, 1)


@torch.no_grad()
def last_value(policy: Policy, batch: Batch) -> Tensor:
    """V(obs[T]) of each column: what follows the batch's last row."""
    obs = index(batch["obs"], slice(-1, None))
    return policy.value(obs, batch["first"][-1:], index(batch.get("state", {}), -1)).squeeze(0)


def valid_observations(batch: Batch) -> Any:
    """The observations of the valid rows, [N, ...]; leaves that are not floats keep all rows.

    Nobody keeps statistics of those, and copying images would cost a tenth of an IMPALA step.
    """
    valid = batch["valid"]

    def rows(leaf: Tensor) -> Tensor:
        return leaf[:-1][valid] if leaf.is_floating_point() else leaf[:-1].flatten(0, 1)

    return tree_map(rows, batch["obs"])
