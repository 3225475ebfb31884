"""Loading: segments become one batch of tensors on the training device.

    processor   segments --copied side by side--> the batch, whose tensors share memory with its arrays
    GPU         segments --copied by a thread--> pinned block --its own stream--> the batch on the GPU

On a GPU there are two pinned blocks and a thread, so that the next batch is on its way while the learner works on this
one. On a processor that would only take the learner's time away. This module must not know what is learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from srl.streams.base import Slot, columns
from srl.streams.frames import stack_into, stacked
from srl.tree import batched, copy_into, leaves, spec_of, tree_map, zeros


class Block:
    """Segments side by side in one block of the processor's memory; frames are stacked."""

    def __init__(self, segment: dict[str, Any], count: int, pinned: bool = False) -> None:
        spec = spec_of(columns(segment))
        self._rows = segment["reward"].shape[1]
        spec["obs"] = stacked(spec["obs"], segment.get("before", {}))
        wide = {name: tree_map(lambda leaf: _widened(leaf, count), part) for name, part in spec.items()}
        self.tensors: Any = tree_map(torch.from_numpy, zeros(wide))
        if pinned:
            self.tensors = tree_map(lambda tensor: tensor.pin_memory(), self.tensors)
        self._arrays = tree_map(lambda tensor: tensor.numpy(), self.tensors)

    def fill(self, slots: Sequence[Slot]) -> Any:
        """Copy the segments in, in the order given; the block as tensors."""
        for at, slot in enumerate(slots):
            part = slice(at * self._rows, (at + 1) * self._rows)
            fields = columns(slot.segment)
            target = tree_map(lambda leaf, part=part: leaf[:, part], self._arrays)
            stack_into(target.pop("obs"), fields.pop("obs"), slot.segment["first"], slot.segment.get("before", {}))
            copy_into(target, fields)
        return self.tensors


def _widened(leaf: Any, count: int) -> Any:
    time_rows, rows, *rest = leaf.shape
    return batched(type(leaf)(tuple(rest), leaf.dtype), time_rows, rows * count)


class Loader:
    """Gives batches on one device; a batch is valid until the next is loaded."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.overlaps = device.type == "cuda"
        """Whether loading goes on beside training."""
        self._blocks: list[Block] = []
        self._turn = 0
        self._begun: Future[Any] | None = None
        self._thread = ThreadPoolExecutor(1, "loader") if self.overlaps else None
        self._stream: Any = torch.cuda.Stream(device) if self.overlaps else None

    def load(self, slots: Sequence[Slot]) -> Any:
        """The batch of these segments, which may be given back from now on."""
        if not self.overlaps:
            return self._block(slots).fill(slots)
        if self._begun is None:
            self.begin(slots)
        assert self._begun is not None
        tensors, self._begun = self._begun.result(), None
        for _, tensor in leaves(tensors):
            # The allocator must not give the memory away before the learner, on its stream, is through with it.
            tensor.record_stream(torch.cuda.current_stream(self._device))
        return tensors

    def begin(self, slots: Sequence[Slot]) -> None:
        """Load these segments beside what else is done; they must be left alone until `load`."""
        assert self._thread is not None
        self._begun = self._thread.submit(self._copy, self._block(slots), slots)

    def _block(self, slots: Sequence[Slot]) -> Block:
        if not self._blocks:
            count = 2 if self.overlaps else 1
            self._blocks = [Block(slots[0].segment, len(slots), self.overlaps) for _ in range(count)]
        self._turn = (self._turn + 1) % len(self._blocks)
        return self._blocks[self._turn]

    def _copy(self, block: Block, slots: Sequence[Slot]) -> Any:
        tensors = block.fill(slots)
        with torch.cuda.stream(self._stream):
            on_device = tree_map(lambda tensor: tensor.to(self._device, non_blocking=True), tensors)
        # Here, where it holds nobody up: the learner may read what is on the device, and the block may be filled anew.
        self._stream.synchronize()
        return on_device

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
