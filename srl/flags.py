"""Flags of the command line from a recipe's parameters: names, types and help come from the function itself.

`max_lag: int = 0` with "max_lag: how old..." in its docstring becomes `--max-lag N`. Both `-` and `_` are accepted,
numbers may be written 1e6 or 1_000, booleans are `--anneal` and `--no-anneal`. An unknown flag is refused with the
nearest one.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from srl.errors import UserError, nearest
from srl.recipes import BUILT_IN
from srl.settings import parse_value

Recipe = Callable[..., Any]


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are UserErrors, and which knows near misses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """One line instead of the usage."""
        raise UserError(message)

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse every word; the first that fits nowhere is named, with the nearest flag."""
        options, rest = self.parse_known_args(_dashed(words))
        if rest:
            flags = [flag for action in self._actions for flag in action.option_strings]
            word = rest[0].partition("=")[0]
            what = "flag" if word.startswith("-") else "argument"
            raise UserError(f"unknown {what} {word!r}{nearest(word, flags)}; see {self.prog} --help")
        return options


def _dashed(words: Sequence[str]) -> list[str]:
    """The words with `_` in the names of flags written as `-`."""

    def one(word: str) -> str:
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value if name.startswith("--") else word

    return [one(word) for word in words]


def find_recipe(name: str) -> Recipe:
    """The recipe of a built-in name, or of module:function."""
    target = BUILT_IN.get(name, name)
    module, colon, function = target.partition(":")
    if not colon:
        raise UserError(
            f"no recipe {name!r}{nearest(name, BUILT_IN)}; there are {', '.join(BUILT_IN)}, or module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"recipe {name!r}: no module {error.name!r} here or on PYTHONPATH") from error
    except AttributeError as error:
        known = [key for key, value in vars(sys.modules[module]).items() if inspect.isfunction(value)]
        raise UserError(f"recipe {name!r}: {module} has no {function!r}{nearest(function, known)}") from error
    if not callable(found):
        raise UserError(f"recipe {name!r} is not a function")
    return found


def first_line(recipe: Recipe) -> str:
    """What a recipe is, in its own words."""
    return (inspect.getdoc(recipe) or "no description").partition("\n")[0]


def help_of(recipe: Recipe) -> dict[str, str]:
    """The line of each parameter in the Args section of the docstring."""
    doc = inspect.getdoc(recipe) or ""
    section = doc.partition("Args:\n")[2]
    return {match[1]: match[2] for match in re.finditer(r"^ {4}(\w+): (.*)$", section, re.MULTILINE)}


def add_parameters(parser: argparse.ArgumentParser, recipe: Recipe) -> None:
    """One flag for each parameter of the recipe."""
    helps = help_of(recipe)
    hints = typing.get_type_hints(recipe)
    group = parser.add_argument_group("parameters of the recipe")
    for name, parameter in inspect.signature(recipe).parameters.items():
        flag = "--" + name.replace("_", "-")
        options: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(helps, parameter)}
        kind = hints.get(name, type(parameter.default) if isinstance(parameter.default, int | float) else str)
        if bool in _choices(kind):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
        else:
            group.add_argument(flag, type=_converter(flag, kind), metavar=_metavar(kind), **options)


def given(options: argparse.Namespace, recipe: Recipe) -> dict[str, Any]:
    """The parameters that the command line set; UserError for one that the recipe needs and that is missing."""
    known = inspect.signature(recipe).parameters
    values = {name: value for name, value in vars(options).items() if name in known}
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in values:
            raise UserError(f"the recipe needs --{name.replace('_', '-')}")
    return values


def _help(helps: dict[str, str], parameter: inspect.Parameter) -> str:
    text = helps.get(parameter.name, "").replace("%", "%%")
    default = parameter.default
    return text if default is None or default is inspect.Parameter.empty else f"{text} [{default}]"


def _choices(kind: Any) -> tuple[Any, ...]:
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return tuple(choice for choice in typing.get_args(kind) if choice is not type(None)) if union else (kind,)


def _metavar(kind: Any) -> str:
    words = [word for choice in _choices(kind) if typing.get_origin(choice) is typing.Literal for word in _args(choice)]
    if words:
        return "|".join(words)
    return {int: "N", float: "X"}.get(_choices(kind)[0], "VALUE")


def _args(choice: Any) -> tuple[Any, ...]:
    return typing.get_args(choice)


def _converter(flag: str, kind: Any) -> Callable[[str], Any]:
    """Turns the text of a flag into a value of the parameter's type."""
    choices = _choices(kind)

    def convert(text: str) -> Any:
        for choice in choices:
            if typing.get_origin(choice) is typing.Literal:
                if text in _args(choice):
                    return text
                raise UserError(
                    f"{flag} must be one of {', '.join(_args(choice))}, not {text!r}{nearest(text, _args(choice))}"
                )
            if typing.get_origin(choice) is tuple:
                return tuple(parse_value(part) for part in text.strip("()[]").split(",") if part)
            if choice in (int, float):
                if text.lower() == "none" and type(None) in _args(kind):
                    return None
                return _number(flag, choice, text)
        return text

    return convert


def whole_number(flag: str) -> Callable[[str], int]:
    """Reads a whole number that may be written 1e6 or 1_000."""
    return lambda text: _number(flag, int, text)


def _number(flag: str, kind: type, text: str) -> Any:
    value = parse_value(text)
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and not whole):
        raise UserError(f"{flag} must be {'a whole number' if kind is int else 'a number'}, not {text!r}")
    return kind(value)
