"""How a batch of environments stands: what of it is kept, as plain data, and put back into one built anew.

A batch names in `kept` the attributes of its own that change, `_inner._ended` for one of something that it holds; one
without `kept` cannot say how it stands. This module must not know who keeps the data.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from srl.envs.state import captured, obstacle, restored


def state_of(batch: Any) -> dict[str, Any] | None:
    """How a batch stands, as plain data; None where it cannot say."""
    parts = _parts(batch)
    return captured(parts) if parts else None


def put_back(batch: Any, state: dict[str, Any]) -> None:
    """Let a batch that has just been reset go on exactly as another one of its kind stood."""
    for name, value in restored(_parts(batch), state).items():
        owner, _, attribute = name.rpartition(".")
        setattr(attrgetter(owner)(batch) if owner else batch, attribute, value)


def why_not(batch: Any) -> str | None:
    """Why a batch cannot say how it stands, for people; None where it can."""
    if hasattr(batch, "why_not"):
        return batch.why_not()
    parts = _parts(batch)
    return obstacle(parts) if parts else f"environments of the kind {type(batch).__name__} do not say how they stand"


def _parts(batch: Any) -> dict[str, Any]:
    return {name: attrgetter(name)(batch) for name in getattr(batch, "kept", ())}
