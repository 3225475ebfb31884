"""What a batch adds to the counters of a run: each rank counts its part, and all exchange what they counted.

    a record per rank, as plain numbers:   ready, asked, steps, lags, ..., returns and lengths of the newest episodes

Must not know how records travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from srl.streams.base import Slot, counted

EPISODES_IN_MEAN = 100
"""Episodes over which the reward of a run is averaged."""
COUNTS = ("ready", "asked", "dropped", "steps", "segments", "lag_sum", "lag_max", "episodes")
RECORD = np.dtype(
    [*((name, "f8") for name in COUNTS), ("returns", "f8", EPISODES_IN_MEAN), ("lengths", "f8", EPISODES_IN_MEAN)]
)
Tallies: TypeAlias = np.ndarray[Any, Any]


def tally_of(slots: Sequence[Slot] | None, version: int, *, asked: bool, dropped: int) -> Tallies:
    """What one rank has for the update of this version, if its part is here, as numbers."""
    record = np.zeros(1, RECORD)
    record["ready"], record["asked"], record["dropped"] = slots is not None, asked, dropped
    returns: list[float] = []
    lengths: list[int] = []
    for segment in (slot.segment for slot in slots or ()):
        lag = version - int(segment["version"].min())
        record["steps"] += segment["valid"].sum()
        record["segments"] += 1
        record["lag_sum"] += lag
        record["lag_max"] = max(lag, record["lag_max"][0])
        _, over = counted(segment)
        # Episodes of environments that broke have no length and do not count.
        over = over & (segment["episode_length"] > 0)
        if over.any():
            returns += segment["episode_return"][over].tolist()
            lengths += segment["episode_length"][over].tolist()
    record["episodes"] = len(returns)
    for name, numbers in (("returns", returns), ("lengths", lengths)):
        newest = numbers[-EPISODES_IN_MEAN:]
        record[name][0, : len(newest)] = newest
    return record.view(np.float64)


def tallies_of(rows: np.ndarray[Any, Any]) -> Tallies:
    """The records of all ranks, from their numbers."""
    return rows.view(RECORD)[:, 0]


def newest_of(tallies: Tallies, name: str) -> list[float]:
    """Returns or lengths of the newest episodes, rank by rank."""
    return [
        number
        for record in tallies
        for number in record[name][: min(int(record["episodes"]), EPISODES_IN_MEAN)].tolist()
    ]


class Lags:
    """How old segments were."""

    def __init__(self) -> None:
        self.sum = self.count = self.max = 0

    def add(self, tallies: Tallies) -> None:
        """Count those of a batch."""
        self.sum += int(tallies["lag_sum"].sum())
        self.count += int(tallies["segments"].sum())
        self.max = max(self.max, int(tallies["lag_max"].max()))

    @property
    def mean(self) -> float:
        """0 before the first."""
        return self.sum / max(1, self.count)
