"""The newest weights of a policy in shared memory, under a sequence lock.

One writer, any number of readers; nobody ever waits. A reader that was disturbed reads again. The order of plain stores
is what x86-64 gives; docs/why.md says what that means elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch

from srl.memory import Memory
from srl.params.base import Board


class Publisher:
    """The trainer's end: makes a set of weights the newest."""

    def __init__(self, spec: dict[str, Any], memory: Memory) -> None:
        self._board = Board(spec, memory)

    def publish(self, version: int, steps: int, weights: dict[str, torch.Tensor]) -> None:
        """Make these weights the newest."""

        def fill(at: int) -> None:
            for name, tensor in weights.items():
                self._board.blocks[at][name][...] = tensor.detach().cpu().numpy()

        self._board.publish(version, steps, fill)


class Reader:
    """Anyone else's end: keeps a module at the newest weights."""

    def __init__(self, spec: dict[str, Any], memory: Memory, module: torch.nn.Module) -> None:
        self._board = Board(spec, memory)
        self._weights = {name: tensor.detach() for name, tensor in module.state_dict(keep_vars=True).items()}
        self._seen = 0
        self.version = -1
        self.steps = 0

    def refresh(self) -> bool:
        """Load the newest weights into the module, if they are newer than what it has."""
        if int(self._board.sequence[0]) // 2 == self._seen:
            return False
        while not self._read():
            pass
        return True

    def _read(self) -> bool:
        board = self._board
        published = int(board.sequence[0]) // 2
        at = published % 2
        for name, tensor in self._weights.items():
            tensor.copy_(torch.from_numpy(board.blocks[at][name]))
        version, steps = (int(number) for number in board.stamps[at])
        # This block is written again from the moment the publish after the next begins.
        if int(board.sequence[0]) >= 2 * published + 3:
            return False
        self._seen, self.version, self.steps = published, version, steps
        return True
