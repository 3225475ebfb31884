"""Trees of tensors."""

import numpy as np
import torch

from srl.models.trees import at, merge_time, to_numpy, to_torch


def test_at_walks_a_path():
    tree = {"a": {"b": 1}}
    assert at(tree, ("a", "b")) == 1
    assert at(tree, ()) is tree


def test_to_torch_shares_memory_and_copies_what_is_read_only():
    array = np.zeros(3, np.float32)
    to_torch(array)[0] = 5
    assert array[0] == 5
    array.flags.writeable = False
    to_torch(array)[0] = 7
    assert array[0] == 5


def test_to_numpy_shares_memory():
    tensor = torch.zeros(3)
    to_numpy(tensor)[0] = 5
    assert tensor[0] == 5


def test_merge_time_keeps_rows_in_order():
    merged = merge_time({"x": torch.arange(24).view(2, 3, 4)})
    assert torch.equal(merged["x"], torch.arange(24).view(6, 4))
