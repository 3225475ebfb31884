"""What requests, replies and segments hold."""

from dataclasses import replace

import msgspec
import pytest

from srl.streams.base import Shapes, columns, reply_spec, request_spec, segment_spec
from srl.tree import leaves, zeros

from .shapes import SHAPES, SMALL


def shapes_in(spec):
    return {"/".join(path): (leaf.shape, leaf.dtype) for path, leaf in leaves(spec)}


def test_a_request_holds_what_the_policy_needs_for_each_row():
    assert shapes_in(request_spec(SHAPES, 5)) == {
        "obs/seen": ((5, 2), "float32"),
        "obs/image": ((5, 1, 2, 2), "uint8"),
        "first": ((5,), "bool"),
        "state/h": ((5, 4), "float32"),
        "mask": ((5, 3), "bool"),
        "noise": ((5, 1), "float32"),
    }


def test_a_request_leaves_out_what_there_is_not():
    assert shapes_in(request_spec(SMALL, 2, explore=False)) == {"obs": ((2, 1), "float32"), "first": ((2,), "bool")}


def test_a_reply_holds_action_state_and_extras():
    assert shapes_in(reply_spec(SHAPES, 5)) == {
        "action": ((5,), "int64"),
        "state/h": ((5, 4), "float32"),
        "log_prob": ((5,), "float32"),
        "value": ((5,), "float32"),
    }


def test_a_segment_has_one_row_more_of_what_comes_after_a_step():
    shapes = shapes_in(segment_spec(SHAPES, 6, 5, 2))
    after = {name: shape for name, (shape, _) in shapes.items() if shape[0] == 7}
    assert after == {"obs/seen": (7, 5, 2), "obs/image": (7, 5, 1, 2, 2), "first": (7, 5), "mask": (7, 5, 3)}
    steps = {name for name, (shape, _) in shapes.items() if shape[0] == 6}
    assert steps == {
        *("action", "log_prob", "value", "reward", "terminated", "truncated", "valid"),
        *("episode_return", "episode_length", "version"),
    }


@pytest.mark.parametrize(("chunk", "entries"), [(None, 2), (6, 2), (3, 3), (2, 4), (1, 7)])
def test_a_state_is_stored_before_each_chunk_and_at_the_end(chunk, entries):
    assert segment_spec(SHAPES, 6, 5, chunk)["state"]["h"].shape == (entries, 5, 4)


def test_a_feedforward_segment_stores_no_state_and_without_masks_no_mask():
    assert not {"state", "mask"} & set(segment_spec(SMALL, 6, 5, None))
    assert "state" in segment_spec(replace(SMALL, state=SHAPES.state), 6, 5, None)


def test_a_learner_sees_no_accounting():
    segment = zeros(segment_spec(SHAPES, 6, 5, None))
    seen = columns(segment)
    assert set(segment) - set(seen) == {"version", "episode_return", "episode_length"}
    assert seen["reward"] is segment["reward"]


@pytest.mark.parametrize("shapes", [SHAPES, SMALL])
def test_shapes_travel_as_plain_data(shapes):
    assert Shapes.from_plain(msgspec.msgpack.decode(msgspec.msgpack.encode(shapes.to_plain()))) == shapes
