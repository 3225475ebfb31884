"""Frames stored once are seen as the stacks that a literal definition gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.errors import UserError
from srl.streams.base import Shapes, segment_spec
from srl.streams.frames import Stacks, stack_into, stacked, stacked_leaves
from srl.tree import Layout, Spec, seen, spec_of, zeros

SHAPE = (3, 2)


def literal(frames: np.ndarray, first: np.ndarray, count: int) -> np.ndarray:
    """Each row's last `count` frames of its episode, oldest first, zeros before it began."""
    rows, envs = first.shape
    out = np.zeros((rows, envs, *SHAPE, count), np.uint8)
    for t in range(rows):
        for b in range(envs):
            for age in range(count):
                if t - age < 0:
                    break
                out[t, b, ..., count - 1 - age] = frames[t - age, b]
                if first[t - age, b]:
                    break
    return out


@pytest.mark.parametrize("count", [2, 4, 8])
@given(data=st.data())
def test_stacks_are_those_of_the_definition_when_acting_and_in_batches(count: int, data) -> None:
    rows, envs = 12, 2
    first = np.array(data.draw(st.lists(st.booleans(), min_size=rows * envs, max_size=rows * envs))).reshape(rows, envs)
    first[0] = True
    frames = np.random.default_rng(1).integers(1, 256, (rows, envs, *SHAPE), dtype=np.uint8)
    expected = literal(frames, first, count)
    obs = {"screen": Spec(SHAPE, "uint8", stack=count), "speed": Spec((), "float32")}
    stacks = Stacks(obs, envs)
    cut = data.draw(st.integers(0, rows - 1))
    for t in range(rows):
        if t == cut:
            before = {name: array.copy() for name, array in stacks.stacks.items()}
        speed = np.full(envs, t, np.float32)
        got = stacks.push({"screen": frames[t], "speed": speed}, first[t])
        np.testing.assert_array_equal(got["screen"], expected[t])
        assert got["speed"] is speed
    # A segment that begins anywhere goes on from the stack before its first row.
    segment = {"screen": frames[cut:], "speed": np.zeros((rows - cut, envs), np.float32)}
    batch = zeros(stacked(spec_of(segment), before))
    stack_into(batch, segment, first[cut:], before)
    np.testing.assert_array_equal(batch["screen"], expected[cut:])


def test_a_segment_holds_every_frame_once() -> None:
    obs = Spec((84, 84), "uint8", stack=4)
    shapes = Shapes(obs, Spec((), "int64", "discrete", (6,), (0,)), None, {}, {}, 1, {})
    spec = segment_spec(shapes, 128, 16, None)
    assert spec["obs"].shape == (129, 16, 84, 84)
    frames = (129 + 4) * 16 * 84 * 84
    assert frames < Layout(spec).nbytes < 1.02 * frames
    assert shapes.seen == seen(obs) == Spec((84, 84, 4), "uint8")


@pytest.mark.parametrize("spec", [Spec((2,), "uint8", stack=3), Spec((2,), "float32", stack=4)])
def test_what_cannot_be_stacked_is_refused(spec: Spec) -> None:
    with pytest.raises(UserError, match="'pixels' is to be stacked"):
        list(stacked_leaves({"pixels": spec}))
