"""Slow literal definitions: columns are split into episodes, and each episode is worked out by itself in plain Python.

Knows nothing of masks: an invalid row is just not part of any episode.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Episode:
    """The rows of one episode that lie in one column, in order, and the value of the observation after them."""

    rows: list[int]
    bootstrap: float


def episodes(value, last_value, terminated, truncated, valid) -> list[Episode]:
    """The episodes of one column, each with V of its final observation (0 if terminated)."""
    after = [*value[1:], last_value]
    found, rows = [], []
    for t in range(len(valid)):
        if not valid[t]:
            continue
        rows.append(t)
        if terminated[t] or truncated[t] or t == len(valid) - 1:
            found.append(Episode(rows, 0.0 if terminated[t] else after[t]))
            rows = []
    assert not rows
    return found


def gae(episode: Episode, reward, value, gamma: float, lam: float) -> dict[int, float]:
    """Advantage of each row: sum over the rows from it on of (gamma * lam)^k * delta."""
    rows = episode.rows
    values = [value[t] for t in rows] + [episode.bootstrap]
    deltas = [reward[t] + gamma * values[i + 1] - values[i] for i, t in enumerate(rows)]
    return {t: sum((gamma * lam) ** k * delta for k, delta in enumerate(deltas[i:])) for i, t in enumerate(rows)}


def vtrace(
    episode: Episode, reward, value, log_rho, gamma: float, rho_bar: float, c_bar: float, lam: float
) -> dict[int, tuple[float, float]]:
    """(advantage, target) of each row, by equation 1 of the paper: a sum over rows of a product of c."""
    rows = episode.rows
    values = [value[t] for t in rows] + [episode.bootstrap]
    rho = [min(rho_bar, math.exp(log_rho[t])) for t in rows]
    c = [lam * min(c_bar, math.exp(log_rho[t])) for t in rows]
    targets = []
    for i in range(len(rows)):
        target = values[i]
        for j in range(i, len(rows)):
            delta = rho[j] * (reward[rows[j]] + gamma * values[j + 1] - values[j])
            target += gamma ** (j - i) * math.prod(c[i:j]) * delta
        targets.append(target)
    targets.append(episode.bootstrap)
    return {t: (rho[i] * (reward[t] + gamma * targets[i + 1] - values[i]), targets[i]) for i, t in enumerate(rows)}
