"""The exact state of environments: taken as plain data, and put back into environments that were built anew.

    captured(envs) -> data -> to_bytes -> bytes -> from_bytes -> data -> restored(envs built anew, data)

After that they go on bit by bit as those would have gone on from which it was taken, in the middle of an episode too.
What is captured is whatever hangs on them: an environment with its wrappers, a vector environment, a list or dict of
these. Where anything in it cannot be taken, nothing is: `captured` gives None, and `obstacle` says why.

An environment that knows better has two methods: `get_state()`, which returns plain data, or None where it has none,
and `set_state(data)`. Reset environments before their state is put back, so that all they hold is there; see
restore.py. Data is a tree of dicts, lists, numbers, text, bytes and arrays. Reading it executes nothing.

This module must not know who keeps the data, nor what an environment is.
"""

from __future__ import annotations

import math
import re
import zlib
from typing import Any

import msgspec
import numpy as np

from srl.envs.capture import Capture, Node, Refused
from srl.envs.restore import Restore, Unfit
from srl.errors import UserError
from srl.tree import Array

_MAGIC = b"srl state 1\n"
_ARRAY = 1
"""The number by which msgpack marks an array."""
_DTYPE = re.compile(r"[<>|][biufcSUmM][1-9]\d{0,8}(\[\d*\w+\])?")


def captured(thing: Any) -> dict[str, Any] | None:
    """The state of an environment, or of a list or dict of them, as plain data; None where it cannot be taken."""
    try:
        return _capture(thing)
    except Refused:
        return None


def obstacle(thing: Any) -> str | None:
    """Why the state cannot be taken, for people; None where it can be."""
    try:
        _capture(thing)
    except Refused as refused:
        return str(refused)
    return None


def _capture(thing: Any) -> dict[str, Any]:
    walk = Capture()
    try:
        root: Node = walk.node(thing, "it")
    except RecursionError:
        raise Refused("it holds things in things that never end") from None
    return {"root": root, "overlaps": _overlaps(walk.arrays)}


def restored(thing: Any, data: Any) -> Any:
    """Put captured state into environments built anew, and return them; a UserError where it does not fit.

    Then nothing has changed, unless it was a set_state() of an environment's own that did not take it.
    """
    walk = Restore()
    try:
        value = walk.value(data["root"], thing, "it")
        if _overlaps(walk.arrays) != data["overlaps"]:
            raise Unfit("arrays do not share their memory as they did")
        walk.commit()
    except (Unfit, LookupError, TypeError, RecursionError) as error:
        raise UserError(f"the saved state does not fit this environment: {error}") from error
    return value


def _overlaps(arrays: dict[int, Array]) -> list[list[int]]:
    """Which arrays lie over each other, and how far apart they begin: writing into one changes the other."""
    found: list[list[int]] = []
    open_until: list[tuple[int, int, int]] = []
    for start, end, number in sorted((*_extent(array), number) for number, array in arrays.items() if array.size):
        open_until = [other for other in open_until if other[1] > start]
        found += [[other, number, start - first] for first, _, other in open_until]
        open_until.append((start, end, number))
    return sorted(found)


def _extent(array: Array) -> tuple[int, int]:
    start: int = array.__array_interface__["data"][0]
    reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
    below, above = (sum(part for part in reach if (part < 0) == negative) for negative in (True, False))
    return start + below, start + above + array.itemsize


def to_bytes(data: Any) -> bytes:
    """Captured state as bytes; ValueError for what is no such data."""
    try:
        body = msgspec.msgpack.encode(data, enc_hook=_encode)
    except (TypeError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise ValueError(f"this cannot be written down: {error}") from error
    return b"".join((_MAGIC, zlib.crc32(body).to_bytes(4, "little"), body))


def _encode(value: Any) -> Any:
    if type(value) is not np.ndarray or _DTYPE.fullmatch(value.dtype.str) is None:
        raise TypeError(f"a {type(value).__name__} is not plain data")
    return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode((value.dtype.str, value.shape, value.tobytes())))


def from_bytes(text: bytes) -> Any:
    """What to_bytes was given; a UserError where the bytes are damaged or something else."""
    body = memoryview(text)[len(_MAGIC) + 4 :]
    if text[: len(_MAGIC)] != _MAGIC:
        raise UserError("this is not the state of environments, or that of another version of srl")
    if zlib.crc32(body).to_bytes(4, "little") != text[len(_MAGIC) : len(_MAGIC) + 4]:
        raise UserError("the saved state of environments is damaged: its checksum is wrong")
    try:
        return msgspec.msgpack.decode(body, ext_hook=_decode)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(f"the saved state of environments cannot be read: {error}") from error


def _decode(code: int, body: memoryview) -> Array:
    if code != _ARRAY:
        raise ValueError(f"an extension has the number {code}")
    text, shape, data = msgspec.msgpack.decode(body, type=tuple[str, tuple[int, ...], bytes])
    if _DTYPE.fullmatch(text) is None:
        raise ValueError(f"an array has the dtype {text[:40]!r}")
    dtype = np.dtype(text)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError("the shape of an array does not fit its length")
    return np.ndarray(shape, dtype, bytearray(data))
