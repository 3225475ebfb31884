"""Settings that are known to work, by recipe and environment: what a recipe uses where the user says nothing."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

ATARI: dict[str, Any] = {
    "steps": 10_000_000,
    "envs": 16,
    "rollout": 128,
    "learning_rate": 2.5e-4,
    "anneal": True,
    "clip": 0.1,
    "entropy": 0.01,
    "epochs": 4,
    "minibatches": 4,
    "shared": True,
    "threads": 0,
    "compile": False,
}

VIZDOOM: dict[str, Any] = {**ATARI, "steps": 2_000_000, "rollout": 64, "clip": 0.2, "normalise": True}

MUJOCO: dict[str, Any] = {
    "steps": 1_000_000,
    "envs": 8,
    "rollout": 256,
    "learning_rate": 3e-4,
    "anneal": True,
    "entropy": 0.0,
    "spread": 0.37,
    "epochs": 10,
    "minibatches": 32,
    "normalise": True,
}

TUNED: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "PongNoFrameskip-v4": {
            **ATARI,
            "steps": 3_000_000,
            "stop_at_reward": 18.0,
            "learning_rate": 1e-3,
            "rollout": 64,
        },
        "CartPole-v1": {"steps": 500_000, "stop_at_reward": 475.0, "learning_rate": 2.5e-3, "anneal": True},
        "Acrobot-v1": {
            "steps": 500_000,
            "stop_at_reward": -85.0,
            "envs": 16,
            "rollout": 256,
            "learning_rate": 1e-3,
            "anneal": True,
            "lam": 0.94,
            "minibatches": 16,
        },
        "LunarLander-v3": {
            "steps": 1_500_000,
            "stop_at_reward": 250.0,
            "envs": 16,
            "rollout": 512,
            "learning_rate": 1e-3,
            "anneal": True,
            "gamma": 0.999,
            "lam": 0.98,
            "minibatches": 32,
        },
        "HalfCheetah-v5": {**MUJOCO, "gamma": 0.98, "lam": 0.92},
        "Pendulum-v1": {
            "steps": 500_000,
            "envs": 16,
            "rollout": 256,
            "learning_rate": 1e-3,
            "anneal": True,
            "gamma": 0.95,
            "popart": True,
            "entropy": 0.0,
            "epochs": 10,
            "minibatches": 16,
        },
    },
    "impala": {
        "CartPole-v1": {
            "steps": 1_000_000,
            "stop_at_reward": 475.0,
            "rollout": 16,
            "learning_rate": 3e-3,
            "anneal": True,
        },
    },
}
"""By recipe, then environment id: parameters of the recipe."""
TUNED["appo"] = {**TUNED["ppo"]}

BODIES = (
    "HalfCheetah",
    "Ant",
    "Hopper",
    "Walker2d",
    "Humanoid",
    "HumanoidStandup",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
)

FAMILIES: dict[str, dict[str, dict[str, Any]]] = {
    "ppo": {
        "ALE/*": ATARI,
        "*NoFrameskip-v*": ATARI,
        "Vizdoom*": VIZDOOM,
        **{pattern: MUJOCO for body in BODIES for pattern in (f"{body}-v*", f"envpool:{body}-v*")},
        "envpool:*-v5": ATARI,  # what EnvPool numbers so and is not a body is a game
    }
}
"""The same for environments that have no entry of their own, by a pattern of their ids; the first that fits."""
FAMILIES["appo"] = {
    pattern: known | ({"epochs": 1} if known is ATARI else {}) for pattern, known in FAMILIES["ppo"].items()
}


def settled(recipe: str, given: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Every parameter of a recipe: as given, else as tuned for the environment, else by default."""
    known = _known(recipe, str(given["env"]))
    return {name: _first(value, known.get(name), defaults.get(name)) for name, value in given.items()}


def _known(recipe: str, env: str) -> dict[str, Any]:
    families = FAMILIES.get(recipe, {})
    family = next((known for pattern, known in families.items() if fnmatchcase(env, pattern)), {})
    return TUNED[recipe].get(env.removeprefix("envpool:"), family)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
