"""What a batch adds to the counters of a run: each rank counts its part, and all exchange what they counted.

    a row of numbers per rank:   ready, asked, steps, lags, ..., returns and lengths of the newest episodes

Must not know how rows travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from srl.streams.base import Slot, counted

EPISODES_IN_MEAN = 100
"""Episodes over which the reward of a run is averaged."""
COUNTS = 8
"""Numbers of a row before those of episodes."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What all ranks have counted."""

    ready: bool
    """Whether all of them have their part."""
    asked: bool
    """Whether control has asked one of them for the end."""
    dropped: int
    """Segments that came too late, since the start."""
    steps: int
    segments: int
    lag_sum: int
    lag_max: int
    episodes: int
    returns: list[float]
    """Of the newest episodes, rank by rank."""
    lengths: list[int]


def row_of(slots: Sequence[Slot] | None, version: int, *, asked: bool, dropped: int) -> np.ndarray[Any, Any]:
    """What one rank has for the update of this version, if its part is here, as numbers."""
    segments = [slot.segment for slot in slots or ()]
    lags = [version - int(segment["version"].min()) for segment in segments]
    steps = sum(int(segment["valid"].sum()) for segment in segments)
    returns: list[float] = []
    lengths: list[int] = []
    for segment in segments:
        _, over = counted(segment)
        # Episodes of environments that broke have no length and do not count.
        over = over & (segment["episode_length"] > 0)
        if over.any():
            returns += segment["episode_return"][over].tolist()
            lengths += segment["episode_length"][over].tolist()
    row = np.zeros(COUNTS + 2 * EPISODES_IN_MEAN)
    counts = (slots is not None, asked, dropped, steps, len(segments), sum(lags), max(lags, default=0), len(returns))
    row[:COUNTS] = counts
    newest = min(len(returns), EPISODES_IN_MEAN)
    if newest:
        row[COUNTS : COUNTS + newest] = returns[-newest:]
        row[-newest:] = lengths[-newest:]
    return row


def tally_of(rows: np.ndarray[Any, Any]) -> Tally:
    """What the rows of all ranks say together."""
    columns = [[int(number) for number in column] for column in rows[:, :COUNTS].T.tolist()]
    ready, asked, dropped, steps, segments, lag_sum, lag_max, episodes = columns
    returns: list[float] = []
    lengths: list[int] = []
    for row, count in zip(rows, episodes, strict=True):
        newest = min(count, EPISODES_IN_MEAN)
        returns += row[COUNTS : COUNTS + newest].tolist()
        lengths += [int(length) for length in row[len(row) - newest :].tolist()]
    return Tally(
        ready=all(ready),
        asked=any(asked),
        dropped=sum(dropped),
        steps=sum(steps),
        segments=sum(segments),
        lag_sum=sum(lag_sum),
        lag_max=max(lag_max),
        episodes=sum(episodes),
        returns=returns,
        lengths=lengths,
    )


class Lags:
    """How old segments were."""

    def __init__(self) -> None:
        self.sum = self.count = self.max = 0

    def add(self, tally: Tally) -> None:
        """Count those of a batch."""
        self.sum += tally.lag_sum
        self.count += tally.segments
        self.max = max(self.max, tally.lag_max)

    @property
    def mean(self) -> float:
        """0 before the first."""
        return self.sum / max(1, self.count)
