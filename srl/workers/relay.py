"""The relay: what a trainer is to the workers of another host.

    takes                        gives                               waits for         unblocked by
    weights and credits          weights in this host's memory,      either side       trainer, actors
    of the trainer               credits for its actors
    full segments of its actors  segments to the trainer

One per trainer and host, so that traffic grows with hosts and not with workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from srl.memory import Channel
from srl.metrics import Clock
from srl.params.base import Board
from srl.streams.far import Outpost
from srl.workers.base import Link


class Relay:
    """Serves the workers of one host on behalf of the ranks of one trainer."""

    def __init__(self, outposts: Sequence[Outpost], board: Board, news: Sequence[Channel], link: Link) -> None:
        self.clock = Clock()
        self._outposts = outposts
        self._board = board
        self._news = news
        self._link = link

    def step(self) -> bool:
        """Pass on whatever there is."""
        worked = [outpost.turn(self._board.version, self._write) for outpost in self._outposts]
        self.clock.lap("send")
        return any(worked)

    def _write(self, version: int, steps: int, block: memoryview) -> None:
        """Make weights the newest here, and wake the policy workers that may wait for them."""
        self._board.write(version, steps, block)
        for channel in self._news:
            # One who does not read finds more than enough to be woken by.
            with contextlib.suppress(BlockingIOError):
                channel.put(version)

    def command(self, message: dict[str, Any]) -> None:
        """An actor of this host is dead, and what it was lent is taken back; or it lives again, and is to be served."""
        if message["do"] not in ("reclaim", "join"):
            raise ValueError(f"a relay does not know how to {message['do']}")
        for outpost in self._outposts:
            if message["do"] == "join":
                outpost.hello(self._board.version)
            elif message["actor"] in outpost.serves:
                outpost.reclaim(message["actor"])
        if message["do"] == "reclaim":
            self._link.send({"kind": "reclaimed", "actor": message["actor"]})

    @property
    def waits(self) -> str:
        """What it waits for: either side."""
        return "wait-either"

    def fds(self) -> list[int]:
        """Something from the trainer, or from an actor."""
        return [fd for outpost in self._outposts for fd in outpost.fds()]

    def close(self) -> None:
        """Leave the trainer."""
        for outpost in self._outposts:
            outpost.close()
