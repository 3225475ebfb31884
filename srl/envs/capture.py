"""Takes the state out of objects: a walk over all they hold, written down as plain nodes.

    None, True, 3, 0.5, "text", b"bytes"        themselves
    everything else                             {"is": kind, ...}; see the functions below, one for each kind
    what several places hold                    {"is": "same", "id": n}, after its first place

What may change is written down, what never does is only named, and what cannot be written down refuses the whole walk:
half a state is worse than none. Objects that hold a process, a thread, a file or memory of C code look plain from
outside, so whole modules are refused, objects of classes that are not written in Python, and numbers that may be
addresses.

What an environment keeps in globals, in attributes of its classes, or behind numbers that are no addresses is not seen.
This module must not know what an environment is.
"""

from __future__ import annotations

import inspect
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from srl.envs import generators, simulators
from srl.tree import Array

Node = Any
"""A scalar or a dict that says in "is" what it stands for."""

SCALARS = (type(None), bool, int, float, str, bytes)
DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}
"""The kinds of dicts that can be made from their name; a defaultdict also needs its factory."""
SETS: dict[str, type[Any]] = {"set": set, "frozenset": frozenset}
PARTS_OF_SPACES = ("_np_random", "spaces", "feature_space", "node_space", "edge_space")
"""All of a space that may change."""
_BY_NAME = (type, types.ModuleType, np.ufunc, types.WrapperDescriptorType, types.MethodDescriptorType)
_BY_REPR = (range, slice, re.Pattern, PurePath, np.dtype, type(...), type(NotImplemented), types.GenericAlias)
_LEFT_ALONE = (EnvSpec, WrapperSpec)
_HOLD_MORE = {
    *("asyncio", "concurrent", "ctypes", "io", "jax", "mmap", "multiprocessing", "queue", "selectors", "shelve"),
    *("socket", "sqlite3", "subprocess", "tempfile", "threading", "torch", "weakref", "zipfile"),
}
"""Modules whose objects are tied to something outside themselves."""
_HEAP_TYPE = 1 << 9
_PLAIN_KINDS = "biufcSUmM"


class Refused(Exception):
    """Something that cannot be taken; says where it is and what."""


class Capture:
    """One walk; `plain` refuses objects and functions, of which only data says nothing."""

    def __init__(self, *, plain: bool = False) -> None:
        self._plain = plain
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []
        self.arrays: dict[int, Array] = {}

    def node(self, value: Any, at: str) -> Node:
        """What stands for a value that is found at `at`."""
        kind = type(value)
        if kind in SCALARS:
            return _scalar(value, at)
        for fits, take in _IMMUTABLE:
            if isinstance(value, fits):
                return take(self, value, at)
        if id(value) in self._numbers:
            return {"is": "same", "id": self._numbers[id(value)]}
        number = len(self._held)
        self._numbers[id(value)] = number
        self._held.append(value)  # as long as it is held, no other has its id
        if isinstance(value, np.ndarray):
            self.arrays[number] = value
        for fits, take in _MUTABLE if self._plain else (*_MUTABLE, *_ACTIVE):
            if isinstance(value, fits):
                return {"id": number, **take(self, value, at)}
        raise Refused(f"{at} is a {name_of_class(kind)}, which is not plain data")

    def nodes(self, values: Iterable[Any], at: str) -> list[Node]:
        """The nodes of items in their order."""
        return [self.node(value, f"{at}[{i}]") for i, value in enumerate(values)]

    def pairs(self, values: Iterable[tuple[Any, Any]], at: str) -> list[list[Node]]:
        """The nodes of keys and values."""
        return [[self.node(key, f"{at} key"), self.node(value, f"{at}[{key!r}]")] for key, value in values]

    def attributes(self, values: dict[str, Any], at: str) -> list[list[Node]]:
        """The nodes of what an object holds by name."""
        return [[name, self.node(value, f"{at}.{name}")] for name, value in values.items()]


def name_of_class(kind: type) -> str:
    """How a node names a class."""
    return f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"


def _scalar(value: Any, at: str) -> Node:
    if type(value) is int:
        if 1 << 32 <= value < 1 << 48:
            raise Refused(f"{at} is {value}, which may be the address of something in memory")
        return value if -(1 << 63) <= value < 1 << 63 else {"is": "int", "hex": hex(value)}
    if type(value) is str and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused(f"{at} is text that is not Unicode") from None
    return value


def _numpy_scalar(walk: Capture, value: Any, at: str) -> Node:
    if np.dtype(value.dtype).kind in "iu":
        _scalar(int(value), at)
    return {"is": "number", "values": _plain_array(np.asarray(value), at)}


def _enum(walk: Capture, value: Any, at: str) -> Node:
    if value.name is None or type(value).__members__.get(value.name) is not value:
        raise Refused(f"{at} is {value!r}, which has no name")
    return {"is": "enum", "class": name_of_class(type(value)), "member": value.name}


def _tuple(walk: Capture, value: Any, at: str) -> Node:
    return {"is": "tuple", "class": name_of_class(type(value)), "items": walk.nodes(value, at)}


def _set(walk: Capture, value: Any, at: str) -> Node:
    kind: type[Any] = type(value)
    if kind not in SETS.values():
        raise Refused(f"{at} is a {name_of_class(kind)}")
    # The order of a set depends on all that was ever in it, and who goes through it may depend on the order.
    if list(kind(list(value))) != list(value):
        raise Refused(f"{at} is a set whose order cannot be had again")
    return {"is": kind.__name__, "items": walk.nodes(value, at)}


def _constant(walk: Capture, value: Any, at: str) -> Node:
    return {"is": "constant", "text": text_of(value)}


def text_of(value: Any) -> str:
    """By what a constant is known again; nothing where it does not matter."""
    if isinstance(value, _LEFT_ALONE):
        return ""
    if isinstance(value, types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, _BY_NAME):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    return "object" if type(value) is object else repr(value)


def _plain_array(value: Array, at: str) -> Array:
    if type(value) is not np.ndarray or value.dtype.kind not in _PLAIN_KINDS or value.dtype.itemsize == 0:
        raise Refused(f"{at} is a {name_of_class(type(value))} of {value.dtype}, not an array of plain numbers or text")
    return value


def axes_of(value: Array) -> list[int]:
    """The axes of an array as they lie in memory, the slowest first: sums depend on their order."""
    return sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))


def _array(walk: Capture, value: Array, at: str) -> Node:
    _plain_array(value, at)
    axes = axes_of(value)
    return {"is": "array", "axes": axes, "values": value.transpose(axes).copy()}


def _list(walk: Capture, value: Any, at: str) -> Node:
    if type(value) is not list:
        raise Refused(f"{at} is a {name_of_class(type(value))}, a list of its own kind")
    return {"is": "list", "items": walk.nodes(value, at)}


def _deque(walk: Capture, value: Any, at: str) -> Node:
    if type(value) is not deque:
        raise Refused(f"{at} is a {name_of_class(type(value))}, a deque of its own kind")
    return {"is": "deque", "maxlen": value.maxlen, "items": walk.nodes(value, at)}


def _dict(walk: Capture, value: Any, at: str) -> Node:
    name = type(value).__name__
    if DICTS.get(name) is not type(value) and type(value) is not defaultdict:
        raise Refused(f"{at} is a {name_of_class(type(value))}, a dict of its own kind")
    return {"is": name, "items": walk.pairs(value.items(), at)}


def _generator(walk: Capture, value: Any, at: str) -> Node:
    try:
        return {"is": "generator", "state": Capture(plain=True).node(generators.taken(value), at)}
    except ValueError as error:
        raise Refused(f"{at} {error}") from None


def _space(walk: Capture, value: Any, at: str) -> Node:
    parts = {name: part for name, part in vars(value).items() if name in PARTS_OF_SPACES}
    return {"is": "space", "class": name_of_class(type(value)), "attributes": walk.attributes(parts, at)}


def name_of_function(value: types.FunctionType) -> str:
    """How a node names a function; lambdas need their line."""
    return f"{value.__module__}.{value.__qualname__}:{value.__code__.co_firstlineno}"


def cells_of(value: types.FunctionType) -> list[Any]:
    """What a function has closed over and may change."""
    return [cell for cell in value.__closure__ or () if _is_filled(cell)]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _function(walk: Capture, value: types.FunctionType, at: str) -> Node:
    cells = walk.nodes((cell.cell_contents for cell in cells_of(value)), f"{at} closes over ")
    held = {name: part for name, part in vars(value).items() if name != "__wrapped__"}
    name = name_of_function(value)
    return {"is": "function", "name": name, "cells": cells, "attributes": walk.attributes(held, at)}


def _method(walk: Capture, value: Any, at: str) -> Node:
    return {"is": "method", "name": value.__func__.__qualname__, "of": walk.node(value.__self__, f"{at}.__self__")}


def _builtin(walk: Capture, value: Any, at: str) -> Node:
    if value.__self__ is None or isinstance(value.__self__, types.ModuleType):
        return _constant(walk, value, at)
    return {"is": "builtin", "name": value.__name__, "of": walk.node(value.__self__, f"{at}.__self__")}


def _partial(walk: Capture, value: partial[Any], at: str) -> Node:
    parts = [value.func, value.args, dict(value.keywords)]
    return {"is": "partial", "parts": [walk.node(part, f"{at}.{i}") for i, part in enumerate(parts)]}


def slots_of(kind: type) -> list[str]:
    """The attributes that objects of a class have beside those in their __dict__."""
    found: list[str] = []
    for owner in kind.__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hidden = name.startswith("__") and not name.endswith("__")
            found.append(f"_{owner.__name__.lstrip('_')}{name}" if hidden else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def is_python(kind: type) -> bool:
    """Whether objects of a class hold nothing that Python does not see."""
    size = object.__basicsize__
    for owner in reversed(kind.__mro__[:-1]):
        fields = len(slots_of(owner)) + (owner.__dictoffset__ > 0) + (owner.__weakrefoffset__ != 0)
        if not owner.__flags__ & _HEAP_TYPE or owner.__basicsize__ > size + 8 * fields:
            return False
    return kind.__dictoffset__ != 0 or bool(slots_of(kind))


def held_by(value: Any) -> dict[str, Any]:
    """All attributes of a plain object."""
    slots = {name: getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)}
    return {**slots, **getattr(value, "__dict__", {})}


def has_own_state(value: Any) -> bool:
    """Whether an object gives and takes its state by itself: get_state() and set_state(data), and not more."""
    try:
        inspect.signature(value.get_state).bind()
        inspect.signature(value.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _object(walk: Capture, value: Any, at: str) -> Node:
    kind: type[Any] = type(value)
    name = name_of_class(kind)
    if kind is object:
        return _constant(walk, value, at)
    taken = simulators.taken(value)
    if taken is not None:
        return {"is": "simulator", "class": name, "state": Capture(plain=True).node(taken, at)}
    if has_own_state(value):
        return _own(walk, value, at)
    if name.partition(".")[0] in _HOLD_MORE or not is_python(kind):
        raise Refused(f"{at} is a {name}, whose state cannot be taken")
    return {"is": "object", "class": name, "attributes": walk.attributes(held_by(value), at)}


def _own(walk: Capture, value: Any, at: str) -> Node:
    try:
        state = value.get_state()
    except Exception as error:
        raise Refused(f"{at}.get_state() raises {type(error).__name__}: {error}") from error
    if state is None:
        raise Refused(f"{at} has no state to give: its get_state() returns None")
    generator = getattr(value, "__dict__", {}).get("_np_random")
    return {
        "is": "own",
        "class": name_of_class(type(value)),
        "state": Capture(plain=True).node(state, f"{at}.get_state()"),
        "generator": walk.node(generator, f"{at}._np_random"),
    }


_Take = Callable[[Capture, Any, str], Node]
_IMMUTABLE: tuple[tuple[Any, _Take], ...] = (
    (np.generic, _numpy_scalar),
    (Enum, _enum),
    (tuple, _tuple),
    (frozenset, _set),
    ((*_BY_NAME, *_BY_REPR, *_LEFT_ALONE), _constant),
)
_MUTABLE: tuple[tuple[Any, _Take], ...] = (
    (np.ndarray, _array),
    (list, _list),
    (deque, _deque),
    (dict, _dict),
    (set, _set),
    (generators.KINDS, _generator),
)
_ACTIVE: tuple[tuple[Any, _Take], ...] = (
    (Space, _space),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (types.BuiltinMethodType, _builtin),
    (partial, _partial),
    (object, _object),
)
