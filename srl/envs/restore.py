"""Puts state back into objects that were built anew: the counterpart of capture.py.

    node + what is there now -> what will be there, and a list of changes; made only when all nodes fit

What is there is changed in place, because others may hold it, C code above all. It is replaced where it does not fit,
where two places shared it and must not, and where it is a constant of a module or class that was never to change.
Objects and functions are never made from what the data says: they must be there already, and of the same name. So
nothing in the data can have anything executed, and data that does not fit changes nothing.
"""

from __future__ import annotations

import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any, NoReturn

import numpy as np

from srl.envs import capture, generators, simulators
from srl.envs.capture import DICTS, PARTS_OF_SPACES, Node, axes_of, name_of_class
from srl.tree import Array

ABSENT = object()
"""What is there where nothing is."""
_CONSTANTS_DEEP, _CONSTANTS_LONG = 3, 1000


class Unfit(ValueError):
    """Data that does not fit what is there; says where and why."""


class Restore:
    """One walk: plan with `value`, then `commit`."""

    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}
        self._values: dict[int, Any] = {}
        self._used: set[int] = set()
        self._changes: list[Callable[[], object]] = []
        self._constants = _Constants()

    def commit(self) -> None:
        """Make all changes."""
        for change in self._changes:
            change()

    def value(self, node: Node, there: Any, at: str) -> Any:
        """What will stand where `there` stands now."""
        if type(node) in capture.SCALARS:
            return node
        try:
            return _GIVE[node["is"]](self, node, there, at)
        except Unfit:
            raise
        except (LookupError, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise Unfit(f"{at}: {type(error).__name__}: {error}") from error

    def same(self, node: Node, there: Any, at: str) -> Any:
        """What was given before under this number."""
        return self._values[node["id"]]

    def give(self, node: Node, value: Any) -> Any:
        """Remember a value by its number, before its parts are looked at: they may refer to it."""
        if node["id"] in self._values or type(node["id"]) is not int:
            raise Unfit(f"two things have the number {node['id']!r}")
        self._values[node["id"]] = value
        self._used.add(id(value))
        return value

    def free(self, there: Any) -> bool:
        """Whether this may be changed in place."""
        return self.unused(there) and not self._constants.has(there)

    def unused(self, there: Any) -> bool:
        """Whether this has not been given a number yet."""
        return id(there) not in self._used

    def then(self, change: Callable[[], object]) -> None:
        """A change to be made when all fits."""
        self._changes.append(change)

    def learn(self, kind: type) -> None:
        """What this class and its module hold is not to be changed in place."""
        self._constants.learn(kind)

    def items(self, nodes: list[Node], there: Iterable[Any], at: str) -> list[Any]:
        """The values of items, each beside what is there at its place."""
        now = list(there)
        beside = now + [ABSENT] * (len(nodes) - len(now))
        return [self.value(node, old, f"{at}[{i}]") for i, (node, old) in enumerate(zip(nodes, beside, strict=False))]

    def attributes(self, nodes: list[Any], there: dict[str, Any], at: str) -> dict[str, Any]:
        """The values of attributes."""
        return {_text(name): self.value(node, there.get(name, ABSENT), f"{at}.{name}") for name, node in nodes}


class _Constants:
    """The ids of what modules and classes hold, so that it is not taken for an environment's own."""

    def __init__(self) -> None:
        self._known: set[Any] = set()
        self._ids: set[int] = set()

    def has(self, value: Any) -> bool:
        return id(value) in self._ids

    def learn(self, kind: type) -> None:
        for owner in kind.__mro__[:-1]:
            if owner in self._known:
                continue
            self._known.add(owner)
            module = vars(sys.modules.get(owner.__module__, types))
            for value in [*module.values(), *vars(owner).values()]:
                self._add(value, _CONSTANTS_DEEP)
                self._add(getattr(value, "__defaults__", None), _CONSTANTS_DEEP)

    def _add(self, value: Any, deep: int) -> None:
        if isinstance(value, list | dict | set | deque | tuple | np.ndarray | np.random.Generator):
            self._ids.add(id(value))
        if isinstance(value, list | dict | tuple) and deep and len(value) < _CONSTANTS_LONG:
            for part in value.values() if isinstance(value, dict) else value:
                self._add(part, deep - 1)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise Unfit(f"an attribute has the name {value!r}")
    return value


def _unfit(at: str, there: Any, wanted: str) -> NoReturn:
    now = "nothing" if there is ABSENT else f"a {name_of_class(type(there))}"
    raise Unfit(f"{at} was {wanted}, and there is {now} now")


def _int(walk: Restore, node: Node, there: Any, at: str) -> int:
    if len(node["hex"]) > 10_000:
        raise Unfit(f"{at} is a number too long")
    return int(node["hex"], 16)


def _number(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if node["values"].shape != ():
        raise Unfit(f"{at} is not one number")
    return node["values"][()]


def _enum(walk: Restore, node: Node, there: Any, at: str) -> Any:
    kind: Any = type(there)
    if not isinstance(there, Enum) or name_of_class(kind) != node["class"]:
        _unfit(at, there, f"a {node['class']}")
    return kind.__members__[node["member"]]


def _tuple(walk: Restore, node: Node, there: Any, at: str) -> Any:
    kind: Any = tuple
    if node["class"] != "builtins.tuple":
        kind = type(there)
        if not issubclass(kind, tuple) or name_of_class(kind) != node["class"]:
            _unfit(at, there, f"a {node['class']}")
    return tuple.__new__(kind, walk.items(node["items"], there if isinstance(there, tuple) else (), at))


def _frozenset(walk: Restore, node: Node, there: Any, at: str) -> Any:
    return frozenset(walk.items(node["items"], (), at))


def _constant(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if node["text"] and (there is ABSENT or capture.text_of(there) != node["text"]):
        _unfit(at, there, node["text"])
    return None if there is ABSENT else there


def _array(walk: Restore, node: Node, there: Any, at: str) -> Any:
    axes, values = node["axes"], node["values"]
    if sorted(axes) != list(range(values.ndim)) or type(values) is not np.ndarray:
        raise Unfit(f"{at} is an array of axes {axes}")
    new: Array = values.copy().transpose(np.argsort(axes).tolist())
    fits = type(there) is np.ndarray and (there.shape, there.dtype) == (new.shape, new.dtype)
    in_place = fits and axes_of(there) == axes and there.flags.writeable and walk.free(there)
    if in_place:
        walk.then(lambda: np.copyto(there, new))
    walk.arrays[node["id"]] = walk.give(node, there if in_place else new)
    return walk.arrays[node["id"]]


def _list(walk: Restore, node: Node, there: Any, at: str) -> Any:
    now = there if type(there) is list else []
    value: list[Any] = walk.give(node, now if walk.free(now) else [])
    items = walk.items(node["items"], list(now), at)
    walk.then(lambda: value.__setitem__(slice(None), items))
    return value


def _deque(walk: Restore, node: Node, there: Any, at: str) -> Any:
    now = there if type(there) is deque else deque[Any]()
    reused = walk.free(now) and now.maxlen == node["maxlen"]
    value: deque[Any] = walk.give(node, now if reused else deque[Any](maxlen=node["maxlen"]))
    items = walk.items(node["items"], list(now), at)
    walk.then(lambda: (value.clear(), value.extend(items)))
    return value


def _set(walk: Restore, node: Node, there: Any, at: str) -> Any:
    value: set[Any] = walk.give(node, there if type(there) is set and walk.free(there) else set())
    items = walk.items(node["items"], (), at)
    for item in items:
        hash(item)  # what cannot be a member is to be found out before anything changes
    walk.then(lambda: (value.clear(), value.update(items)))
    return value


def _dict(walk: Restore, node: Node, there: Any, at: str) -> Any:
    kind = DICTS.get(node["is"])
    now: Any = there if type(there) is (kind or defaultdict) else {}
    if kind is None and now is not there:
        _unfit(at, there, "a defaultdict")
    fresh = defaultdict[Any, Any](now.default_factory) if kind is None else kind()
    value: Any = walk.give(node, now if now is there and walk.free(now) else fresh)
    items: list[tuple[Any, Any]] = []
    for key_node, item in node["items"]:
        key = walk.value(key_node, ABSENT, f"{at} key")
        items.append((key, walk.value(item, now.get(key, ABSENT), f"{at}[{key!r}]")))
    # One by one, because update() of a Counter counts.
    walk.then(lambda: (value.clear(), [value.__setitem__(*item) for item in items]))
    return value


def _generator(walk: Restore, node: Node, there: Any, at: str) -> Any:
    new = generators.made(_plain(node["state"], at))
    if generators.alike(new, there) and walk.free(there):
        walk.then(lambda: generators.impose(new, there))
        return walk.give(node, there)
    return walk.give(node, new)


def _plain(node: Node, at: str) -> Any:
    """Data that no object needs to be there for."""
    walk = Restore()
    value = walk.value(node, ABSENT, at)
    walk.commit()
    return value


def _space(walk: Restore, node: Node, there: Any, at: str) -> Any:
    _must_be(node, there, at)
    walk.give(node, there)
    values = walk.attributes(node["attributes"], vars(there), at)
    if not values.keys() <= set(PARTS_OF_SPACES):
        raise Unfit(f"{at} has {sorted(values)}, which no space changes")
    walk.then(lambda: vars(there).update(values))
    return there


def _must_be(node: Node, there: Any, at: str) -> None:
    if there is ABSENT or name_of_class(type(there)) != node["class"]:
        _unfit(at, there, f"a {node['class']}")


def _function(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if not isinstance(there, types.FunctionType) or capture.name_of_function(there) != node["name"]:
        _unfit(at, there, f"the function {node['name']}")
    walk.give(node, there)
    cells = capture.cells_of(there)
    values = walk.items(node["cells"], [cell.cell_contents for cell in cells], f"{at} closes over ")
    held = walk.attributes(node["attributes"], vars(there), at)
    if len(values) != len(cells):
        _unfit(at, there, f"a function that closes over {len(values)} values")
    walk.then(lambda: vars(there).update(held))
    for cell, value in zip(cells, values, strict=True):
        walk.then(partial(setattr, cell, "cell_contents", value))
    return there


def _method(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if not isinstance(there, types.MethodType) or there.__func__.__qualname__ != node["name"]:
        _unfit(at, there, f"the method {node['name']}")
    owner = walk.value(node["of"], there.__self__, f"{at}.__self__")
    if type(owner) is not type(there.__self__):
        _unfit(at, owner, f"a method of a {name_of_class(type(there.__self__))}")
    return walk.give(node, there if owner is there.__self__ else types.MethodType(there.__func__, owner))


def _builtin(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if not isinstance(there, types.BuiltinMethodType) or there.__name__ != node["name"]:
        _unfit(at, there, f"the method {node['name']}")
    owner = walk.value(node["of"], there.__self__, f"{at}.__self__")
    if type(owner) is not type(there.__self__):
        _unfit(at, owner, f"a method of a {name_of_class(type(there.__self__))}")
    return walk.give(node, there if owner is there.__self__ else getattr(owner, there.__name__))


def _partial(walk: Restore, node: Node, there: Any, at: str) -> Any:
    if type(there) is not partial:
        _unfit(at, there, "a functools.partial")
    now = [there.func, there.args, dict(there.keywords)]
    func, args, keywords = walk.items(node["parts"], now, at)
    return walk.give(node, partial(func, *args, **keywords))


def _simulator(walk: Restore, node: Node, there: Any, at: str) -> Any:
    _must_be(node, there, at)
    said = _plain(node["state"], at)
    try:
        walk.then(simulators.putting(there, said))
    except (ValueError, RuntimeError) as error:
        raise Unfit(f"{at}: {error}") from error
    return walk.give(node, there)


def _own(walk: Restore, node: Node, there: Any, at: str) -> Any:
    _must_be(node, there, at)
    if not capture.has_own_state(there):
        _unfit(at, there, "something with get_state() and set_state()")
    walk.give(node, there)
    said = _plain(node["state"], at)
    held = getattr(there, "__dict__", {})
    walk.then(lambda: _set_state(there, said, at))
    # Afterwards, since set_state may have drawn from it or seeded it.
    generator = walk.value(node["generator"], held.get("_np_random", ABSENT), f"{at}._np_random")
    if generator is not None:
        walk.then(lambda: held.update(_np_random=generator))
    return there


def _set_state(there: Any, state: Any, at: str) -> None:
    try:
        there.set_state(state)
    except Exception as error:
        raise Unfit(f"{at}.set_state() raises {type(error).__name__}: {error}") from error


def _object(walk: Restore, node: Node, there: Any, at: str) -> Any:
    _must_be(node, there, at)
    kind: Any = type(there)
    if not capture.is_python(kind):
        _unfit(at, there, "an object")
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    now = capture.held_by(there)
    walk.learn(kind)
    if not frozen and not walk.unused(there):
        raise Unfit(f"{at} was an object of its own, and is one with another now")
    value = walk.give(node, object.__new__(kind) if frozen else there)
    values = walk.attributes(node["attributes"], now, at)
    walk.then(partial(_hold, value, values))
    return value


def _hold(value: Any, values: dict[str, Any]) -> None:
    """Let an object have these attributes and no others."""
    for name in capture.slots_of(type(value)):
        if name in values:
            object.__setattr__(value, name, values[name])
        elif hasattr(value, name):
            object.__delattr__(value, name)
    if hasattr(value, "__dict__"):
        held = vars(value)
        held.clear()
        held.update((name, part) for name, part in values.items() if name not in capture.slots_of(type(value)))


_Give = Callable[[Restore, Node, Any, str], Any]
_GIVE: dict[str, _Give] = {
    "same": Restore.same,
    "int": _int,
    "number": _number,
    "enum": _enum,
    "tuple": _tuple,
    "frozenset": _frozenset,
    "constant": _constant,
    "array": _array,
    "list": _list,
    "deque": _deque,
    "set": _set,
    **dict.fromkeys((*DICTS, "defaultdict"), _dict),
    "generator": _generator,
    "space": _space,
    "function": _function,
    "method": _method,
    "builtin": _builtin,
    "partial": _partial,
    "simulator": _simulator,
    "own": _own,
    "object": _object,
}
