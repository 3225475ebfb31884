"""A batch is its segments side by side, on every device, also while the next one is on its way."""

import numpy as np
import pytest
import torch

from srl.streams.base import Slot, segment_spec
from srl.tree import leaves, tree_map, zeros
from srl.workers.loader import Loader

from .literal import SHAPES

ROLLOUT, ROWS, SEGMENTS = 4, 3, 2
CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def slots_of(rng):
    """Full segments of random numbers."""
    spec = segment_spec(SHAPES, ROLLOUT, ROWS, None)

    def drawn(array):
        return rng.integers(0, 2, array.shape).astype(array.dtype)

    return [Slot(at, at, at, 0, tree_map(drawn, zeros(spec))) for at in range(SEGMENTS)]


def assert_is(batch, slots):
    for name in ("reward", "first", "valid"):
        expected = np.concatenate([slot.segment[name] for slot in slots], axis=1)
        np.testing.assert_array_equal(batch[name].cpu().numpy(), expected)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_segments_stand_side_by_side_batch_after_batch(device):
    rng, loader = np.random.default_rng(0), Loader(torch.device(device))
    try:
        for _ in range(5):
            slots = slots_of(rng)
            batch = loader.load(slots)
            assert all(tensor.device.type == device for _, tensor in leaves(batch))
            assert_is(batch, slots)
    finally:
        loader.close()


@pytest.mark.gpu
def test_a_batch_stays_what_it_is_while_the_next_ones_are_loaded():
    rng, loader = np.random.default_rng(0), Loader(torch.device("cuda"))
    try:
        slots = slots_of(rng)
        batch = loader.load(slots)
        for _ in range(20):
            following = slots_of(rng)
            loader.begin(following)
            total = sum(batch["reward"].sum() for _ in range(50))
            assert_is(batch, slots)
            batch, slots = loader.load(following), following
            assert torch.isfinite(total)
    finally:
        loader.close()
