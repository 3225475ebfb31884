"""A policy worker's end of the act edge: one batch of all that waits, wherever it comes from.

    shared memory ---+
                     +--> take() -> lanes, one batch ... answer(lanes, reply, version) --> each where it came from
    network ---------+

It takes all that waits, at most so many rows, and never waits for more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from srl.streams.shm import Lane
from srl.tree import index, tree_map


class Source(Protocol):
    """Where requests come from, over one transport."""

    epoch: int

    def take(self, most: int) -> list[tuple[int, dict[str, Any]]]:
        """Lanes that wait and their requests, at most so many."""
        ...

    def answer(self, lane: int, reply: dict[str, Any], version: int) -> None:
        """Give a lane its rows."""
        ...

    def fds(self) -> list[int]:
        """Readable when a request may be here."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


class ActServer:
    """Answers the requests of all sources."""

    def __init__(self, sources: Sequence[Source], lanes: Sequence[Lane], max_batch: int) -> None:
        self._sources = sources
        self._rows = {lane.index: lane.rows for lane in lanes}
        self._most = max(1, max_batch // max(self._rows.values()))
        self._from: dict[int, Source] = {}

    def take(self) -> tuple[list[int], dict[str, Any]] | None:
        """The lanes that wait and their requests as one batch; a single request is a view, not a copy."""
        self._from.clear()
        requests: list[dict[str, Any]] = []
        for source in self._sources:
            for lane, request in source.take(self._most - len(requests)) if len(requests) < self._most else ():
                self._from[lane] = source
                requests.append(request)
        if not requests:
            return None
        lanes = list(self._from)
        if len(requests) == 1:
            return lanes, requests[0]
        return lanes, tree_map(lambda *parts: np.concatenate(parts), requests[0], *requests[1:])

    def answer(self, lanes: Sequence[int], reply: dict[str, Any], version: int) -> None:
        """Give each lane its rows of the reply."""
        start = 0
        for lane in lanes:
            stop = start + self._rows[lane]
            rows = {name: index(leaf, slice(start, stop)) for name, leaf in reply.items()}
            self._from[lane].answer(lane, rows, version)
            start = stop

    def begin(self, epoch: int) -> None:
        """From now on answer nothing that was asked in another epoch."""
        for source in self._sources:
            source.epoch = epoch

    def fds(self) -> list[int]:
        """Readable when a request may be here."""
        return [fd for source in self._sources for fd in source.fds()]

    def close(self) -> None:
        """Give back what the sources hold."""
        for source in self._sources:
            source.close()
