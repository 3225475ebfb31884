"""What a recipe picks for the machine it runs on, where its user says nothing: actors, threads, and what is compiled.

    actors    environments stepped one by one    one per core, but at least 4 environments each
              environments that come as a vector 1
              where there are several trainers   as many for each
    threads   of trainers that `threads=0` leaves to this rule: a share of all cores while the actors wait for them, of
              half where they run ahead
    compile   small networks, where there is a C++ compiler and enough gradient steps to win back what compiling takes

The rule is stated and not measured, so that the same command means the same run on the same machine.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

FEWEST_ENVS = 4
"""Environments of an actor: fewer make each of its steps mostly overhead."""
ENOUGH_GRADIENT_STEPS = 50_000
"""Compiling takes some 15 s, and saves about half a millisecond of each."""


def placed(p: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a recipe with nothing left open."""
    cores = cores_here()
    actors = p["actors"] if p["actors"] is not None else _actors(p, cores)
    threads = p["threads"] or max(1, (cores if p["max_lag"] == 0 else cores // 2) // max(1, p["trainers"]))
    worth = _gradient_steps(p) >= ENOUGH_GRADIENT_STEPS and p["memory"] == "none" and has_compiler()
    return {**p, "actors": actors, "threads": threads, "compile": worth if p["compile"] is None else p["compile"]}


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_compiler() -> bool:
    """Whether torch finds what it compiles with."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))


def _gradient_steps(p: dict[str, Any]) -> float:
    return p["steps"] / max(1, p["envs"] * p["rollout"]) * p.get("epochs", 1) * p.get("minibatches", 1)


def _actors(p: dict[str, Any], cores: int) -> int:
    fewest = max(1, p["trainers"])
    if _comes_as_a_vector(p["env"]):
        return fewest
    fits = [n for n in range(fewest, cores + 1, fewest) if p["envs"] % (n * p["ring"]) == 0]
    return max((n for n in fits if p["envs"] // (n * p["ring"]) >= FEWEST_ENVS), default=fewest)


def _comes_as_a_vector(env: Any) -> bool:
    """Whether all environments of an actor are one call: another actor would only make that call again."""
    from srl.envs.base import steps_together

    return steps_together(env)
