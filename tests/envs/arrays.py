"""The arrays an EnvBatch writes into, as an actor would own them."""

import numpy as np

from srl.tree import zeros


def arrays(batch):
    """Arrays for one step, filled with what no step may leave behind."""
    out = {"obs": zeros(batch.obs, batch.size), "reward": np.full(batch.size, np.nan, np.float32)}
    out |= {name: np.ones(batch.size, bool) for name in ("terminated", "truncated")}
    if batch.scored:
        out |= {"score": np.full(batch.size, np.nan, np.float32), "game_over": np.ones(batch.size, bool)}
    return out | ({"mask": zeros(batch.mask, batch.size)} if batch.mask else {})
