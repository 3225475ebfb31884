"""Batches cut into chunks and minibatches."""

import pytest
import torch

from srl.algorithms.chunks import Chunks, joined, last_value, valid_observations
from srl.errors import UserError

from .fakes import MLPPolicy, RNNPolicy, batch_for


def numbered(steps, columns, count=0):
    """A batch whose observation and action tell their row and column."""
    rows = torch.arange(steps + 1)[:, None] * 10 + torch.arange(columns)
    flag = torch.zeros(steps + 1, columns, dtype=torch.bool)
    batch = {"obs": {"x": rows[..., None]}, "first": flag, "valid": ~flag[:-1], "action": rows[:-1], "mask": rows}
    if count:
        batch["state"] = {"h": rows[:: steps // count]}
    return batch


def test_recurrent_chunks_keep_their_rows_and_state_together():
    chunks = Chunks.cut(numbered(6, 2, count=3))
    assert chunks.rows["action"].tolist() == [[0, 1, 20, 21, 40, 41], [10, 11, 30, 31, 50, 51]]
    assert chunks.rows["mask"].tolist() == chunks.rows["action"].tolist()
    assert chunks.rows["obs"]["x"].shape == (2, 6, 1)
    assert chunks.state["h"].tolist() == [0, 1, 20, 21, 40, 41]
    part = chunks.take(torch.tensor([3, 0]))
    assert part.rows["action"].tolist() == [[21, 0], [31, 10]]
    assert part.state["h"].tolist() == [21, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 6])
def test_joined_is_the_inverse_of_cut(count):
    batch = numbered(6, 2, count)
    assert joined(Chunks.cut(batch).rows["action"], batch).tolist() == batch["action"].tolist()


def test_feedforward_minibatches_hold_every_valid_row_once():
    batch = numbered(4, 3)
    batch["valid"][1, 1] = batch["valid"][3, 0] = False
    generator = torch.Generator().manual_seed(0)
    parts = list(Chunks.cut(batch).minibatches(3, generator))
    assert [part.rows["action"].shape for part in parts] == [(1, 4), (1, 3), (1, 3)]
    assert all("valid" not in part.rows for part in parts)
    seen = torch.cat([part.rows["action"][0] for part in parts]).tolist()
    assert sorted(seen) == sorted(batch["action"][batch["valid"]].tolist())
    assert seen != sorted(seen)


def test_recurrent_minibatches_leave_out_chunks_with_nothing_valid():
    batch = numbered(4, 2, count=4)
    batch["valid"][2, 1] = False
    parts = list(Chunks.cut(batch).minibatches(100, torch.Generator().manual_seed(0)))
    assert sorted(part.rows["action"].item() for part in parts) == [0, 1, 10, 11, 20, 30, 31]


def test_states_must_divide_the_segment():
    batch = numbered(6, 1)
    batch["state"] = {"h": torch.zeros(5, 1)}
    with pytest.raises(UserError, match="6 rows cannot be cut in 4 chunks"):
        Chunks.cut(batch)


def test_single_rows_are_not_copied():
    batch = numbered(6, 2)
    assert Chunks.cut(batch).rows["obs"]["x"].data_ptr() == batch["obs"]["x"].data_ptr()


def test_last_value_is_that_of_the_observation_after_the_last_row():
    policy = MLPPolicy()
    batch = batch_for(policy, 4, 3)
    # Batches of other sizes may be summed in another order.
    torch.testing.assert_close(last_value(policy, batch), policy.value(batch["obs"], batch["first"], {})[-1])
    recurrent = RNNPolicy()
    batch = batch_for(recurrent, 4, 3, chunk=2)
    whole = recurrent.value(batch["obs"], batch["first"], {"h": batch["state"]["h"][0]})[-1]
    torch.testing.assert_close(last_value(recurrent, batch), whole)


def test_valid_observations():
    batch = numbered(3, 2)
    batch["valid"][1, 0] = False
    assert valid_observations(batch)["x"].shape == (6, 1)
    batch["obs"] = batch["obs"]["x"].float()
    assert valid_observations(batch).squeeze(1).tolist() == [0, 1, 11, 20, 21]
