"""Checks of settings: each rule says in words what a value must be.

    check(self, learning_rate=POSITIVE, clip=POSITIVE.or_none())

Imports no torch; must not know which settings it checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from srl.errors import UserError


@dataclass(frozen=True)
class Rule:
    """A condition on one value, with the words that follow "must be"."""

    text: str
    accepts: Callable[[object], bool]

    def or_none(self) -> Rule:
        """The same rule for a setting that may also be off."""
        return Rule(f"{self.text}, or None", lambda value: value is None or self.accepts(value))


def _number(test: Callable[[float], bool]) -> Callable[[object], bool]:
    """A test that only finite numbers can pass; YAML reads 3e-4 as a string, and True is not a number here."""
    return lambda value: (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and test(value)
    )


def one_of(*words: str) -> Rule:
    """One of these words."""
    return Rule("one of " + ", ".join(map(repr, words)), lambda value: value in words)


POSITIVE = Rule("a number above 0", _number(lambda value: value > 0))
NOT_NEGATIVE = Rule("a number of at least 0", _number(lambda value: value >= 0))
ABOVE_ONE = Rule("a number above 1", _number(lambda value: value > 1))
FRACTION = Rule("a number from 0 to 1", _number(lambda value: 0 <= value <= 1))
COUNT = Rule("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
FLAG = Rule("true or false", lambda value: isinstance(value, bool))


def check(settings: object, **rules: Rule) -> None:
    """Raise UserError for the first field that breaks its rule."""
    for name, rule in rules.items():
        value = getattr(settings, name)
        if not rule.accepts(value):
            raise UserError(f"{type(settings).__name__}: {name} must be {rule.text}, not {value!r}")
