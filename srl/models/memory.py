"""Memory: recurrence over a stretch of time, with exact resets.

    x [T, B, inputs] -> one matmul for all T -> for each t: state = 0 where first[t]
                                                            state = cell(x[t], state)   -> outputs [T, B, size]

The state handed in is the one before row 0; the one handed out is the one after the last row. A reset replaces the
state by zeros, so nothing of an old episode, not even a NaN, gets into a new one. Memory must not know what it
remembers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from srl.models import config
from srl.models.outline import GATES


class Memory(nn.Module):
    """What the two kinds share: the projections and the loop over time."""

    gates: int
    """How many vectors of the state's size a step computes from the input."""

    def __init__(self, inputs: int, settings: config.LSTM | config.GRU) -> None:
        super().__init__()
        self.features = size = settings.size
        self.state = settings.state
        self.names = tuple(settings.state)
        self.input = nn.Linear(inputs, self.gates * size)
        self.recurrent = nn.Parameter(torch.empty(size, self.gates * size))
        for weight in (*self.input.weight.split(size, 0), *self.recurrent.split(size, 1)):
            nn.init.orthogonal_(weight)
        nn.init.zeros_(self.input.bias)

    def forward(self, x: Tensor, first: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs [T, B, size] and the state after them, for inputs [T, B, inputs]."""
        projected = self.input(x)
        now = tuple(state[name] for name in self.names)
        outputs: list[Tensor] = []
        for gates, reset in zip(projected, first.unsqueeze(-1), strict=True):
            now = self.cell(gates, *(part.masked_fill(reset, 0.0) for part in now))
            outputs.append(now[0])
        return torch.stack(outputs), dict(zip(self.names, now, strict=True))

    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The next state."""
        raise NotImplementedError("cell(gates, *state) -> state")


class LSTMMemory(Memory):
    """Long short-term memory: hidden state h and cell c."""

    gates = GATES[config.LSTM]

    def __init__(self, inputs: int, settings: config.LSTM) -> None:
        super().__init__(inputs, settings)
        # A forget gate that starts open lets gradients through time from the first update on.
        nn.init.ones_(self.input.bias[: settings.size])

    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The next h and c."""
        h, c = state
        size = self.features
        gates = torch.addmm(gates, h, self.recurrent)
        forget, enter, leave = gates[:, : 3 * size].sigmoid().chunk(3, 1)
        c = forget * c + enter * gates[:, 3 * size :].tanh()
        return leave * c.tanh(), c


class GRUMemory(Memory):
    """Gated recurrent unit: hidden state h."""

    gates = GATES[config.GRU]

    def __init__(self, inputs: int, settings: config.GRU) -> None:
        super().__init__(inputs, settings)
        self.candidate_bias = nn.Parameter(torch.zeros(settings.size))

    def cell(self, gates: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """The next h."""
        (h,) = state
        size = self.features
        recurrent = h @ self.recurrent
        reset, keep = (gates[:, : 2 * size] + recurrent[:, : 2 * size]).sigmoid().chunk(2, 1)
        # Within the reset gate, as torch.nn.GRU does it, so that the recurrent product is one for all gates.
        remembered = recurrent[:, 2 * size :] + self.candidate_bias
        candidate = (gates[:, 2 * size :] + reset * remembered).tanh()
        return (torch.lerp(candidate, h, keep),)
