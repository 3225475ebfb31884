"""Trees keep their order and shape, and a layout puts every leaf into one block without a copy."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.tree import (
    ALIGNMENT,
    Layout,
    Spec,
    batched,
    copy_into,
    index,
    leaves,
    name_of,
    spec_from_plain,
    spec_of,
    spec_to_plain,
    tree_map,
    zeros,
)

SPEC = {
    "b": Spec((2, 3), "float32"),
    "a": {"x": Spec((), "int64"), "none": Spec((0,), "uint8"), "y": Spec((5,), "bool")},
}
LEAVES = st.builds(
    Spec,
    shape=st.lists(st.integers(0, 4), max_size=3).map(tuple),
    dtype=st.sampled_from(["float32", "float64", "uint8", "int64", "bool"]),
)
SPECS = st.recursive(LEAVES, lambda children: st.dictionaries(st.text(max_size=3), children, max_size=4), max_leaves=8)


def test_leaves_come_in_the_order_of_the_dicts():
    assert [name_of(path) for path, _ in leaves(SPEC)] == ["b", "a/x", "a/none", "a/y"]
    assert list(leaves(3)) == [((), 3)]
    assert name_of(()) == "(root)"


def test_map_keeps_the_shape_of_the_first_tree():
    other = {"a": {"x": 1, "y": 2, "none": 3}, "b": 4, "unused": 5}
    assert tree_map(lambda spec, number: (spec.size, number), SPEC, other) == {
        "b": (6, 4),
        "a": {"x": (1, 1), "none": (0, 3), "y": (5, 2)},
    }


def test_a_spec_knows_its_size():
    assert (Spec((2, 3), "float32").size, Spec((2, 3), "float32").nbytes) == (6, 24)
    assert (Spec((), "int64").size, Spec((), "int64").nbytes) == (1, 8)
    assert Spec((4, 0), "float64").nbytes == 0


def test_leading_dimensions():
    assert batched(SPEC, 7, 2)["b"] == Spec((7, 2, 2, 3), "float32")
    discrete = Spec((), "int64", "discrete", (4,), (1,))
    assert batched(discrete, 3) == Spec((3,), "int64", "discrete", (4,), (1,))
    assert zeros(SPEC, 7)["a"]["y"].shape == (7, 5)
    assert spec_of(zeros(SPEC)) == SPEC


def test_copy_is_into_the_target():
    target, source = zeros(SPEC), tree_map(lambda leaf: leaf + 1, zeros(SPEC))
    kept = target["a"]["x"]
    copy_into(target, source)
    assert kept == 1
    assert target["b"] is not source["b"]
    with pytest.raises(KeyError):
        copy_into(target, {"b": source["b"]})


def test_index_gives_views():
    tree = zeros(SPEC, 4, 3)
    copy_into(index(tree, 2), tree_map(lambda leaf: leaf + 1, zeros(SPEC, 3)))
    assert tree["b"].sum(axis=(1, 2, 3)).tolist() == [0, 0, 18, 0]
    assert tree["a"]["x"].sum(axis=1).tolist() == [0, 0, 3, 0]


@given(SPECS, st.integers(0, 3))
def test_a_layout_places_leaves_apart_aligned_and_within_its_block(spec, blocks):
    layout = Layout(spec)
    start = blocks * layout.nbytes
    buffer = bytearray(start + layout.nbytes)
    before = 0
    for (_, leaf), offset in zip(leaves(spec), layout.offsets, strict=True):
        assert offset % ALIGNMENT == 0
        assert offset >= before
        before = offset + leaf.nbytes
    assert before <= layout.nbytes
    view = layout.view(buffer, start)
    assert spec_of(view) == spec
    for number, (_, leaf) in enumerate(leaves(view), 1):
        leaf[...] = number % 2 if leaf.dtype == bool else number
    again = layout.view(buffer, start)
    for number, (_, leaf) in enumerate(leaves(again), 1):
        assert (leaf == (number % 2 if leaf.dtype == bool else number)).all()
    assert not any(buffer[:start])


def test_a_view_copies_nothing():
    layout = Layout(SPEC)
    block = np.zeros(layout.nbytes, np.uint8)
    layout.view(block.data)["a"]["x"][...] = 1
    assert block[layout.offsets[1]] == 1


def test_equal_specs_have_equal_layouts():
    assert Layout(SPEC) == Layout(dict(SPEC))
    assert Layout(SPEC).offsets != Layout(dict(reversed(SPEC.items()))).offsets


@st.composite
def full_specs(draw):
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))

    def each(values):
        return st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)).map(tuple)

    numbers = st.floats(allow_nan=False)
    bounds = numbers | each(numbers) if math.prod(shape) > 1 else numbers
    return Spec(
        shape,
        draw(st.sampled_from(["float32", "float64", "uint8", "int64", "bool"])),
        draw(st.sampled_from(["box", "discrete", "binary"])),
        draw(st.just(()) | each(st.integers(1, 9))),
        draw(st.just(()) | each(st.integers(-9, 9))),
        draw(bounds),
        draw(bounds),
    )


KEYS = st.sampled_from(["tree", "shape", "0", "1", "type", "a/b", ""])
FULL = st.recursive(full_specs(), lambda children: st.dictionaries(KEYS, children, max_size=3), max_leaves=6)


@given(FULL | st.none())
def test_specs_survive_json(spec):
    text = json.dumps(spec_to_plain(spec), allow_nan=False)
    assert spec_from_plain(json.loads(text)) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "object"},
        {"dtype": "U9"},
        {"shape": [-1]},
        {"stack": 0},
        {"n": [1, 2]},
        {"low": ["0"] * 3},
        {"low": []},
    ],
)
def test_specs_that_contradict_themselves_are_refused(change):
    plain = spec_to_plain(Spec((2, 2), "float32"))
    with pytest.raises(ValueError, match="no space is like"):
        spec_from_plain({**plain, **change})
