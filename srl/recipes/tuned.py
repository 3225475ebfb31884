"""Settings that are known to work, by recipe and environment: what a recipe uses where the user says nothing."""

from __future__ import annotations

from typing import Any

TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "CartPole-v1": {"steps": 500_000, "stop_at_reward": 475.0, "learning_rate": 2.5e-3, "anneal": True},
    },
    "impala": {},
}
"""By recipe, then environment id: parameters of the recipe."""


def settled(recipe: str, given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of a recipe: as given, else as tuned for the environment, else by default."""
    known = TUNED[recipe].get(str(given["env"]), {})
    return {name: _first(value, known.get(name), defaults.get(name)) for name, value in given.items()}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
