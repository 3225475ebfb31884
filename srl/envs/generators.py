"""The state of random generators, numpy's and Python's, as plain data.

    taken(generator) -> data -> made(data) -> a new generator, whose state the old one takes

Data is believed only after it has made a generator: numpy itself would read beside its buffer if told so. This module
must not know who draws from a generator.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

BITS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
KINDS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
_LAST = {"MT19937": 624, "Philox": 4}
"""Where these stand at most in the numbers they have ready."""


def taken(value: Any) -> dict[str, Any]:
    """The state of a generator; ValueError where it has more than can be set."""
    kind = type(value).__name__
    if type(value) is random.Random:
        version, words, gauss = value.getstate()
        return {"kind": kind, "version": version, "words": np.array(words, np.uint32), "gauss": gauss}
    if type(value) is np.random.RandomState:
        return {"kind": kind, **_bits(value._bit_generator), "legacy": value.get_state(legacy=False)}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    if type(value) is np.random.Generator:
        return {"kind": kind, **_bits(value.bit_generator)}
    return {"kind": "bits", **_bits(value)}


def _bits(value: Any) -> dict[str, Any]:
    kind = type(value).__name__
    if BITS.get(kind) is not type(value):
        raise ValueError(f"draws from a {type(value).__module__}.{kind}, which is not known")
    if getattr(getattr(value, "seed_seq", None), "n_children_spawned", 0):
        raise ValueError("has spawned other generators, whose number cannot be set")
    return {"bits": kind, "state": value.state}


def made(data: Any) -> Any:
    """A new generator in the state that was taken."""
    if data["kind"] == "Random":
        python = random.Random(0)
        python.setstate((data["version"], tuple(data["words"].tolist()), data["gauss"]))
        return python
    bits = BITS[data["bits"]](0)
    state = data["state"]
    place = {"MT19937": state["state"].get("pos"), "Philox": state.get("buffer_pos")}.get(data["bits"], 0)
    if not 0 <= place <= _LAST.get(data["bits"], 0):
        raise ValueError("a generator stands beside its numbers")
    bits.state = state
    if data["kind"] == "RandomState":
        legacy = np.random.RandomState(bits)
        legacy.set_state({**data["legacy"], "state": state["state"]})
        return legacy
    return np.random.Generator(bits) if data["kind"] == "Generator" else bits


def alike(new: Any, there: Any) -> bool:
    """Whether the generator that is there can be given the state of the new one."""
    if type(new) is np.random.Generator and type(there) is np.random.Generator:
        return type(new.bit_generator) is type(there.bit_generator)
    return type(new) is type(there)


def impose(new: Any, there: Any) -> None:
    """Give the generator that is there the state of the new one."""
    if isinstance(new, random.Random):
        there.setstate(new.getstate())
    elif isinstance(new, np.random.RandomState):
        there.set_state(new.get_state(legacy=False))
    elif isinstance(new, np.random.Generator):
        there.bit_generator.state = new.bit_generator.state
    else:
        there.state = new.state
