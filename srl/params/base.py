"""What lies in the shared memory of the params edge; known without torch.

header   sequence (two per publish, odd while writing), then version and steps of each block
blocks   two, written in turn, so that a reader is only disturbed by two publishes during one read
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from srl.memory import Memory
from srl.tree import Layout

HEADER_BYTES = 64


def params_bytes(spec: dict[str, Any]) -> int:
    """Shared memory that the weights of a policy take."""
    return HEADER_BYTES + 2 * Layout(spec).nbytes


class Board:
    """The header and both blocks, seen as arrays."""

    def __init__(self, spec: dict[str, Any], memory: Memory) -> None:
        layout = Layout(spec)
        self.sequence = np.ndarray((1,), np.int64, memory.buffer)
        self.stamps = np.ndarray((2, 2), np.int64, memory.buffer, 8)
        starts = (HEADER_BYTES, HEADER_BYTES + layout.nbytes)
        self.blocks = [layout.view(memory.buffer, start) for start in starts]
        self._raw = [np.ndarray((layout.nbytes,), np.uint8, memory.buffer, start) for start in starts]

    def publish(self, version: int, steps: int, fill: Callable[[int], None]) -> None:
        """Have the block that is not the newest filled, and make it the newest."""
        at = (int(self.sequence[0]) // 2 + 1) % 2
        self.sequence[0] += 1
        fill(at)
        self.stamps[at] = version, steps
        self.sequence[0] += 1

    def write(self, version: int, steps: int, block: memoryview) -> None:
        """Publish weights that were published elsewhere."""
        if len(block) != len(self._raw[0]):
            raise ValueError(f"weights of {len(block)} bytes, where {len(self._raw[0])} were agreed on")

        def fill(at: int) -> None:
            self._raw[at][:] = np.frombuffer(block, np.uint8)

        self.publish(version, steps, fill)

    @property
    def version(self) -> int:
        """The newest version, as its only writer sees it; -1 before the first."""
        published = int(self.sequence[0]) // 2
        return int(self.stamps[published % 2][0]) if published else -1

    def newest(self) -> bytes:
        """A copy of the newest weights, as their only writer sees them."""
        return self._raw[int(self.sequence[0]) // 2 % 2].tobytes()
