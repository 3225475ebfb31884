"""The state of simulators that are written in C: MuJoCo's bodies and a single Atari game.

    MjData          every array of fixed size and the time; the rest is computed from them
    MjModel         only a checksum: a model that an environment changes cannot be restored
    ALEInterface    the emulator's own snapshot, its generator included

Environments read positions and forces that belong to the state before the last one, so that it is not enough to set
MuJoCo's integration state: everything they may read is put back as it was. Nothing here imports a simulator; what was
not imported cannot be in an environment. This module must not know what an environment does with them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from srl.tree import Array


def taken(value: Any) -> dict[str, Any] | None:
    """The state of a simulator, or None when the value is none."""
    kind = _kind_of(value)
    return None if kind is None else _TAKE[kind](value)


def putting(value: Any, state: Any) -> Callable[[], None]:
    """What will put the state back into a simulator of the same kind; raises ValueError when it does not fit."""
    kind = _kind_of(value)
    if kind is None:
        raise ValueError("there is no simulator")
    return _PUT[kind](value, state)


def _kind_of(value: Any) -> str | None:
    for kind, (module, name) in _KINDS.items():
        if module in sys.modules and type(value) is getattr(sys.modules[module], name):
            return kind
    return None


def _arrays(value: Any) -> dict[str, Array]:
    names = (name for name in dir(value) if not name.startswith("_"))
    return {name: array for name in names if type(array := getattr(value, name)) is np.ndarray}


def _fixed_arrays(data: Any) -> dict[str, Array]:
    """The arrays whose size does not follow the contacts: those that are there before anything was computed."""
    new = sys.modules["mujoco"].MjData(data.model)
    return {name: array for name, array in _arrays(data).items() if getattr(new, name).size}


def _take_data(data: Any) -> dict[str, Any]:
    return {"time": data.time, "arrays": {name: array.copy() for name, array in _fixed_arrays(data).items()}}


def _put_data(data: Any, state: Any) -> Callable[[], None]:
    arrays, new = _fixed_arrays(data), state["arrays"]
    if arrays.keys() != new.keys():
        raise ValueError("it was saved by another version of MuJoCo, or from another model")
    for name, array in arrays.items():
        if (array.shape, array.dtype) != (new[name].shape, new[name].dtype):
            raise ValueError(f"{name} has shape {new[name].shape}; this model's has {array.shape}")
    time = float(state["time"])
    mujoco = sys.modules["mujoco"]

    def copy() -> None:
        for name, array in arrays.items():
            array[...] = new[name]
        data.time = time

    def put() -> None:
        # Once for what follows from the state, contacts above all, and again for what was not of this state.
        copy()
        mujoco.mj_forward(data.model, data)
        copy()

    return put


def _take_model(model: Any) -> dict[str, Any]:
    total = 0
    for name, array in _arrays(model).items():
        total = zlib.crc32(
            np.ascontiguousarray(array).data.cast("B") if array.size else b"", zlib.crc32(name.encode(), total)
        )
    return {"checksum": total}


def _put_model(model: Any, state: Any) -> Callable[[], None]:
    if state != _take_model(model):
        raise ValueError("the environment has changed its model, or had another")
    return lambda: None


def _take_game(ale: Any) -> dict[str, Any]:
    return {"snapshot": ale.cloneState(include_rng=True).serialize()}


def _put_game(ale: Any, state: Any) -> Callable[[], None]:
    snapshot = sys.modules["ale_py"].ALEState(state["snapshot"])
    return lambda: ale.restoreState(snapshot)


_KINDS = {"data": ("mujoco", "MjData"), "model": ("mujoco", "MjModel"), "game": ("ale_py", "ALEInterface")}
_TAKE = {"data": _take_data, "model": _take_model, "game": _take_game}
_PUT = {"data": _put_data, "model": _put_model, "game": _put_game}
