"""Memory: the torch.nn cells it must equal, exact resets, chunks."""

import pytest
import torch
from torch import nn

from srl.models.config import GRU, LSTM

T, B, INPUTS, SIZE = 9, 4, 3, 5


@pytest.fixture(params=[LSTM(size=SIZE), GRU(size=SIZE)], ids=["lstm", "gru"])
def memory(request):
    return request.param.build(INPUTS)


def random_state(memory):
    return {name: torch.randn(B, SIZE) for name in memory.state}


def test_lstm_equals_torch():
    ours, theirs = LSTM(size=SIZE).build(INPUTS), nn.LSTM(INPUTS, SIZE)
    # torch orders the gates: enter, forget, cell, leave; ours: forget, enter, leave, cell.
    order = torch.arange(4 * SIZE).view(4, SIZE)[[1, 0, 3, 2]].flatten()
    with torch.no_grad():
        ours.input.weight.copy_(theirs.weight_ih_l0[order])
        ours.input.bias.copy_((theirs.bias_ih_l0 + theirs.bias_hh_l0)[order])
        ours.recurrent.copy_(theirs.weight_hh_l0[order].T)
    x, state = torch.randn(T, B, INPUTS), random_state(ours)
    expected, (h, c) = theirs(x, (state["h"][None], state["c"][None]))
    outputs, after = ours(x, torch.zeros(T, B, dtype=torch.bool), state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, {"h": h[0], "c": c[0]})


def test_gru_equals_torch():
    ours, theirs = GRU(size=SIZE).build(INPUTS), nn.GRU(INPUTS, SIZE)
    with torch.no_grad():
        ours.input.weight.copy_(theirs.weight_ih_l0)
        ours.input.bias.copy_(theirs.bias_ih_l0)
        ours.input.bias[: 2 * SIZE] += theirs.bias_hh_l0[: 2 * SIZE]
        ours.recurrent.copy_(theirs.weight_hh_l0.T)
        ours.candidate_bias.copy_(theirs.bias_hh_l0[2 * SIZE :])
    x, state = torch.randn(T, B, INPUTS), random_state(ours)
    expected, h = theirs(x, state["h"][None])
    outputs, after = ours(x, torch.zeros(T, B, dtype=torch.bool), state)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, {"h": h[0]})


def test_each_episode_is_as_if_it_were_alone(memory):
    x, state = torch.randn(T, B, INPUTS), random_state(memory)
    first = torch.rand(T, B) < 0.3
    outputs, _ = memory(x, first, state)
    for b in range(B):
        starts = sorted({0, *first[:, b].nonzero().flatten().tolist()})
        for start, end in zip(starts, [*starts[1:], T], strict=True):
            alone = {name: leaf[b : b + 1] * (not first[start, b]) for name, leaf in state.items()}
            never = torch.zeros(end - start, 1, dtype=torch.bool)
            expected, _ = memory(x[start:end, b : b + 1], never, alone)
            torch.testing.assert_close(outputs[start:end, b], expected[:, 0])


def test_nothing_passes_a_reset(memory):
    x = torch.randn(T, B, INPUTS)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[4] = True
    poisoned = {name: torch.full((B, SIZE), torch.nan) for name in memory.state}
    outputs, _ = memory(x, first, poisoned)
    assert outputs[:4].isnan().all()
    fresh, _ = memory(x[4:], first[4:], random_state(memory))
    assert torch.equal(outputs[4:], fresh)


def test_gradients_stop_at_a_reset(memory):
    x = torch.randn(T, B, INPUTS, requires_grad=True)
    first = torch.zeros(T, B, dtype=torch.bool)
    first[4] = True
    outputs, _ = memory(x, first, random_state(memory))
    outputs[4:].sum().backward()
    assert not x.grad[:4].any()
    assert x.grad[4:].any(-1).all()


def test_chunks_continue_each_other(memory):
    x, state = torch.randn(T, B, INPUTS), random_state(memory)
    first = torch.rand(T, B) < 0.3
    whole, last = memory(x, first, state)
    head, between = memory(x[:5], first[:5], state)
    tail, after = memory(x[5:], first[5:], between)
    torch.testing.assert_close(torch.cat([head, tail]), whole)
    torch.testing.assert_close(after, last)
