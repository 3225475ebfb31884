"""The policy worker: answers act requests in batches that form by themselves.

    takes             gives                          waits for       unblocked by
    act requests      replies stamped with a version any request     actor
    newest params

It takes all that waits, at most `max_batch` rows, and never waits for more. It keeps nothing about those who ask:
recurrent state and noise travel with the request, so any worker may answer any request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from srl.metrics import Clock
from srl.streams.inline import Acts, Weights
from srl.workers.base import Link


class Server(Protocol):
    """A policy worker's end of the act edge."""

    def take(self) -> tuple[list[int], dict[str, Any]] | None:
        """The lanes that wait, and their requests as one batch."""
        ...

    def answer(self, lanes: Sequence[int], reply: dict[str, Any], version: int) -> None:
        """Give each lane its rows of the reply."""
        ...

    def begin(self, epoch: int) -> None:
        """From now on answer nothing that was asked in another epoch."""
        ...

    def fds(self) -> list[int]:
        """Readable when a request is here."""
        ...

    def close(self) -> None:
        """Hear nobody any more."""
        ...


class PolicyWorker:
    """Serves one named policy."""

    def __init__(self, policy: Acts, weights: Weights, act: Server, link: Link) -> None:
        self.clock = Clock()
        self._link = link
        self._policy = policy
        self._weights = weights
        self._act = act

    def step(self) -> bool:
        """Answer all that waits with the newest weights."""
        batch = self._act.take()
        if batch is None:
            return False
        lanes, request = batch
        self._weights.refresh()
        self.clock.lap("load")
        reply = self._policy.act(request)
        self.clock.lap("act")
        self._act.answer(lanes, reply, self._weights.version)
        self.clock.lap("send")
        return True

    def command(self, message: dict[str, Any]) -> None:
        """A new epoch: from now on no request of an older one is answered, and control hears that it is so."""
        if message["do"] != "epoch":
            raise ValueError(f"a policy worker does not know how to {message['do']}")
        self._act.begin(message["epoch"])
        self._link.send({"kind": "epoch", "epoch": message["epoch"]})

    @property
    def waits(self) -> str:
        """What it waits for: any request."""
        return "wait-request"

    def fds(self) -> list[int]:
        """A request."""
        return self._act.fds()

    def close(self) -> None:
        """Hear nobody any more."""
        self._act.close()
