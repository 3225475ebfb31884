"""What lies in the shared memory of the params edge; known without torch.

header   sequence (two per publish, odd while writing), then version and steps of each block
blocks   two, written in turn, so that a reader is only disturbed by two publishes during one read
"""

from __future__ import annotations

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
