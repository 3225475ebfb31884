"""The act edge without a wire: the actor holds the policy itself.

A request is answered while it is sent, by the newest weights this end has read. One request, one forward pass: what is
computed never depends on who else asks, so a run is reproducible however its rollouts are spread over actors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Acts(Protocol):
    """What can answer a request."""

    def act(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to a request, a pure function of the weights and the request."""
        ...


class Weights(Protocol):
    """Where newer weights come from."""

    version: int

    def refresh(self) -> bool:
        """Read the newest weights, if they are newer."""
        ...


class InlineClient:
    """An actor's end of the act edge that computes the actions on the spot."""

    def __init__(self, policy: Acts, weights: Weights) -> None:
        self._policy = policy
        self._weights = weights
        self._replies: dict[int, tuple[dict[str, Any], int]] = {}
        self._ready: list[int] = []

    def refresh(self, at_least: int = 0) -> None:
        """Read newer weights; a credit is only granted after the weights it asks for are published."""
        self._weights.refresh()
        if self._weights.version < at_least:
            raise RuntimeError(f"asked to act with version {at_least}, but {self._weights.version} is the newest")

    def send(self, lane: int, request: dict[str, Any]) -> None:
        """Answer at once."""
        self._replies[lane] = self._policy.act(request), self._weights.version
        self._ready.append(lane)

    def poll(self) -> list[int]:
        """Lanes whose reply is here: all that were sent since."""
        ready, self._ready = self._ready, []
        return ready

    def reply(self, lane: int) -> tuple[dict[str, Any], int]:
        """The reply and the version that gave it."""
        return self._replies[lane]

    def ask_again(self, epoch: int) -> None:
        """Nobody else ever has a request."""

    def knock_at(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Nobody else is asked."""

    def fds(self) -> list[int]:
        """Nothing to wait for."""
        return []
