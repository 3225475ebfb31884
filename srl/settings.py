"""Settings as text and back: dataclasses to plain data, YAML, and `a.b.c=value`.

    to_plain(experiment) -> dict    from_plain(Experiment, dict) -> Experiment    set_path(experiment, "a.b.c", "1")

A dataclass whose class is not fixed by its field's annotation carries `type: module:Class`. Reading text imports a
module only if the caller allows it, and accepts nothing but dataclasses from it: a file never chooses what is executed.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from srl.errors import UserError, nearest

Resolve = Callable[[str], type]
"""Turns "module:Class" into the class, or raises UserError."""

_IMPORT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w./<>-]*")
_OWN = {"srl", "envpool"}
"""Packages that SRL itself imports by the names in settings, and trusts."""
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)([eE][-+]?\d+)?")


def to_plain(value: Any, hint: Any = Any) -> Any:
    """Plain dicts, lists and scalars that say everything the settings say."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        plain = {f.name: to_plain(getattr(value, f.name), hints[f.name]) for f in dataclasses.fields(value)}
        return plain if _settings_classes(hint) == [type(value)] else {"type": import_string(type(value)), **plain}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, _item_hint(hint)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, _item_hint(hint)) for item in value]
    return import_string(value) if callable(value) else value


def import_string(thing: Any) -> str:
    """Where a class or function can be imported from, as "module:name"; a script's own as those of its file."""
    if not hasattr(thing, "__qualname__"):
        return repr(thing)
    script = getattr(sys.modules["__main__"], "__file__", None)
    module = Path(script).stem if thing.__module__ == "__main__" and script else thing.__module__
    return f"{module}:{thing.__qualname__}"


def from_plain(hint: Any, data: Any, resolve: Resolve, where: str = "") -> Any:
    """The settings that plain data describe; UserError names the first place that does not fit."""
    if not isinstance(data, Mapping):
        return _scalar(hint, data, where)
    if any(choice is Any or typing.get_origin(choice) is dict for choice in _choices(hint)):
        return {key: from_plain(_item_hint(hint), item, resolve, f"{where}.{key}") for key, item in data.items()}
    if "type" in data:
        data = dict(data)
        made = _dataclass_from(resolve(str(data.pop("type"))), data, resolve, where)
        if not any(_is_a(choice, made) for choice in _choices(hint)):
            raise UserError(f"{where or 'the value'} must be {_say(hint)}, not {type(made).__name__}")
        return made
    classes = _settings_classes(hint)
    if len(classes) != 1:
        raise UserError(f"{where or 'the value'} must be {_say(hint)}, not {dict(data)!r}")
    return _dataclass_from(classes[0], data, resolve, where)


def _is_a(choice: Any, made: Any) -> bool:
    """Whether settings are what one choice of a hint asks for, as far as that can be seen."""
    kind = typing.get_origin(choice) or choice
    # Of a protocol that is not runtime_checkable nothing can be seen.
    return isinstance(kind, type) and (not getattr(kind, "_is_runtime_protocol", True) or isinstance(made, kind))


def _settings_classes(hint: Any) -> list[type]:
    return [choice for choice in _choices(hint) if isinstance(choice, type) and dataclasses.is_dataclass(choice)]


def _dataclass_from(cls: type, data: Mapping[str, Any], resolve: Resolve, where: str) -> Any:
    hints = typing.get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls)]
    for key in data:
        if key not in known:
            raise UserError(f"unknown setting {where + '.' if where else ''}{key}{nearest(str(key), known)}")
    fields = {key: from_plain(hints[key], item, resolve, f"{where}.{key}".lstrip(".")) for key, item in data.items()}
    try:
        return cls(**fields)
    except TypeError as error:
        raise UserError(f"{where or cls.__name__}: {error}") from error


def _choices(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the hint itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _item_hint(hint: Any) -> Any:
    for choice in _choices(hint):
        args = [arg for arg in typing.get_args(choice) if arg is not Ellipsis]
        if args:
            return args[-1]
    return Any


def _scalar(hint: Any, data: Any, where: str) -> Any:
    choices = _choices(hint)
    for choice in choices:
        origin = typing.get_origin(choice) or choice
        if origin is tuple and isinstance(data, list | tuple):
            return tuple(_scalar(_item_hint(choice), item, where) for item in typing.cast("list[Any]", data))
        if origin is typing.Literal and data in typing.get_args(choice):
            return data
        if choice is Any or (data is None and choice is type(None)) or _fits(choice, data):
            return data
        if choice is float and isinstance(data, int) and not isinstance(data, bool):
            return float(data)
        if choice is int and isinstance(data, float) and data.is_integer() and float not in choices:
            return int(data)
    raise UserError(f"{where or 'the value'} must be {_say(hint)}, not {data!r}{_hint_for(choices, data)}")


def _fits(choice: Any, data: Any) -> bool:
    if isinstance(data, bool):
        return choice is bool
    return choice in (str, int, float) and isinstance(data, choice)


def _hint_for(choices: tuple[Any, ...], data: Any) -> str:
    words = [word for choice in choices for word in typing.get_args(choice) if isinstance(word, str)]
    return nearest(str(data), words)


def _say(hint: Any) -> str:
    words: list[str] = []
    for choice in _choices(hint):
        if typing.get_origin(choice) is typing.Literal:
            words += [str(word) for word in typing.get_args(choice)]
        else:
            words.append("none" if choice is type(None) else getattr(choice, "__name__", str(choice)))
    return " or ".join(words)


def parse_value(text: str) -> Any:
    """A scalar or list as people type it: 1e6 and 1_000 are numbers, none and null are nothing."""
    if _NUMBER.fullmatch(text):
        number = text.replace("_", "")
        return int(number) if re.fullmatch(r"[-+]?\d+", number) else float(number)
    if text.lower() == "none":
        return None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def set_path(settings: Any, path: str, text: str, resolve: Resolve) -> Any:
    """The settings with the one at `path` replaced by what `text` says."""
    return _replaced(settings, type(settings), path.split("."), parse_value(text), resolve, "")


def _replaced(settings: Any, hint: Any, path: list[str], value: Any, resolve: Resolve, where: str) -> Any:
    if not path:
        return from_plain(hint, value, resolve, where)
    key, rest = path[0], path[1:]
    here = f"{where}.{key}".lstrip(".")
    if isinstance(settings, Mapping):
        item_hint = _item_hint(hint)
        if key not in settings and (rest or item_hint is not Any):
            raise UserError(_unknown(here, key, list(settings)))
        return {**settings, key: _replaced(settings.get(key), item_hint, rest, value, resolve, here)}
    known = _field_names(settings, where)
    if key not in known:
        raise UserError(_unknown(here, key, known))
    new = _replaced(getattr(settings, key), typing.get_type_hints(type(settings))[key], rest, value, resolve, here)
    return dataclasses.replace(settings, **{key: new})


def _unknown(where: str, key: str, known: list[str]) -> str:
    return f"unknown setting {where}{nearest(key, known)}; known here: {', '.join(known)}"


def _field_names(settings: Any, where: str) -> list[str]:
    if not dataclasses.is_dataclass(settings):
        raise UserError(f"{where} has no settings inside: it is {settings!r}")
    return [f.name for f in dataclasses.fields(settings)]


def trusting(*modules: str) -> Resolve:
    """A resolver that imports from srl, from modules already imported, and from those named here; dataclasses only."""

    def resolve(target: str) -> type:
        module, _, name = target.partition(":")
        _demand_trust(module, target, modules)
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"cannot import {target!r}: {error}") from error
        if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
            raise UserError(f"{target!r} is not a settings dataclass")
        return found

    return resolve


def _demand_trust(module: str, target: str, trusted: tuple[str, ...]) -> None:
    root = module.partition(".")[0]
    if root not in _OWN.union(trusted) and module not in trusted and module not in sys.modules:
        raise UserError(f"{target!r} is not part of srl; if you trust it, allow it with --trust {root}")


def demand_trust(settings: Any, *trusted: str) -> None:
    """Refuse settings whose names, when they are used, would import what is not part of srl and not trusted."""
    for name in _import_strings(to_plain(settings)):
        _demand_trust(name.partition(":")[0], name, trusted)


def outside(settings: Any) -> list[str]:
    """The packages outside srl that settings name, as in "package.module:name"."""
    modules = {name.partition(":")[0].partition(".")[0] for name in _import_strings(to_plain(settings, type(settings)))}
    return sorted(modules - _OWN)


def _import_strings(plain: Any) -> list[str]:
    if isinstance(plain, Mapping):
        return [name for item in plain.values() for name in _import_strings(item)]
    if isinstance(plain, list):
        return [name for item in plain for name in _import_strings(item)]
    return [plain] if isinstance(plain, str) and _IMPORT.fullmatch(plain) else []


def to_yaml(settings: Any) -> str:
    """The settings as YAML, in the order of their fields."""
    return yaml.safe_dump(to_plain(settings, type(settings)), sort_keys=False, width=100)


class _Loader(yaml.SafeLoader):
    """YAML without aliases: with them a few lines can say more than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"line {self.peek_event().start_mark.line + 1} has an alias; write it out")
        return super().compose_node(parent, index)


def from_yaml(cls: type, text: str, *trusted: str) -> Any:
    """The settings that YAML describes, of classes that are part of srl, imported already, or trusted."""
    try:
        data = yaml.load(text, _Loader)
    # PyYAML lets through whatever int, float or a date raise at what they do not know.
    except Exception as error:
        raise UserError(f"not valid YAML: {error}") from error
    if not isinstance(data, Mapping):
        raise UserError(f"expected settings of {cls.__name__}, found {type(data).__name__}")
    return from_plain(cls, data, trusting(*trusted))
