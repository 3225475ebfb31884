"""The compiled gradient step does what the eager one does."""

import copy

import pytest
import torch
from torch import nn

from srl.algorithms.base import Update
from srl.algorithms.compiled import CompiledStep


def losses(net: nn.Module):
    def of(rows, weight):
        error = (net(rows["x"]) - rows["y"]).square().mean()
        return {"loss": weight * error, "error": error}

    return of


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def rows(size: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return {name: torch.randn(size, width, generator=generator) for name, width in (("x", 3), ("y", 1))}


def eager(update: Update, loss, learning_rate: float, *args) -> dict[str, torch.Tensor]:
    return update.step(loss(*args), learning_rate)


# What torch's compiler imports warns of torch's own past.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("limit", [0.5, None])
def test_it_equals_the_eager_step_for_any_size_and_goes_on_from_its_state(limit) -> None:
    ours, theirs = net(), net()
    mine, reference = Update(ours, "adam", limit), Update(theirs, "adam", limit)
    step = CompiledStep(losses(ours), mine)
    for at, size in enumerate((16, 15, 16, 33)):
        args = (0.01 * (at + 1), rows(size), torch.tensor(3.0 + at))
        got, expected = step(*args), eager(reference, losses(theirs), *args)
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert mine.count == reference.count == 4
    # Each goes on from what the other saved.
    mine_saved, reference_saved = (copy.deepcopy(update.state_dict()) for update in (mine, reference))
    mine.load_state_dict(reference_saved)
    reference.load_state_dict(mine_saved)
    args = (0.02, rows(16), torch.tensor(1.0))
    torch.testing.assert_close(step(*args), eager(reference, losses(theirs), *args))
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
