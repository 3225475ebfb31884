"""The two exceptions that cross modules.

UserError ends a command with one line and exit code 2. Closed is the normal end of a run, raised inside any wait.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user wrote cannot be used; the message names it and says what to do."""


class Closed(Exception):
    """The run is over; whoever waits may go home."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint such as "; did you mean 'ppo'?", or nothing when no known word is close."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
