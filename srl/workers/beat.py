"""Signs of life: each worker's row holds when it was last seen, on the machine's common clock. No torch."""

from __future__ import annotations

import time

import numpy as np

from srl.memory import Memory


class Beat:
    """A worker's own row."""

    def __init__(self, memory: Memory, row: int) -> None:
        self._times = _times(memory)
        self._row = row

    def touch(self) -> None:
        """The worker is alive now."""
        self._times[self._row] = time.monotonic()

    def forget(self) -> None:
        """Nobody has been seen here yet."""
        self._times[self._row] = 0.0


def ages_of(memory: Memory) -> list[float]:
    """Seconds since each worker was last seen; 0 for those that have not been seen yet."""
    now = time.monotonic()
    return [now - seen if seen else 0.0 for seen in _times(memory).tolist()]


def _times(memory: Memory) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.ndarray((memory.nbytes // 8,), np.float64, memory.buffer)
