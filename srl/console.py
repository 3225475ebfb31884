"""What a person sees of a run: live in a terminal, a line now and then in a log, nothing when quiet.

It is told what happened and draws it; it decides nothing.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_SECONDS = 10.0
"""Seconds between two lines where there is no terminal."""
CURVE_POINTS = 400
"""Points kept of the curve that is shown."""
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass
class View:
    """What is known of a run at one moment."""

    steps: int = 0
    total: int | None = None
    seconds: float = 0.0
    fps: float = 0.0
    reward: float | None = None
    best: float | None = None
    goal: float | None = None
    length: float | None = None
    episodes: int = 0
    version: int = 0
    lag: float = 0.0
    evaluation: float | None = None
    bound: str = "starting"
    curve: list[float] = field(default_factory=list[float])

    def add_to_curve(self, reward: float) -> None:
        """One more point; a long curve is thinned out."""
        self.curve.append(reward)
        if len(self.curve) > CURVE_POINTS:
            self.curve = self.curve[::2]

    @property
    def left(self) -> float | None:
        """Seconds that the steps still to do will take."""
        return max(0, self.total - self.steps) / self.fps if self.total and self.fps else None


class Console:
    """Shows a run."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._out = RichConsole(file=sys.stderr, highlight=False)
        self._live: Live | None = None
        self._next_line = 0.0

    def begin(self, title: str, folder: str) -> None:
        """The run starts."""
        if self._quiet:
            return
        self._out.print(Text(title, style="bold"))
        self._out.print(Text(f"run folder {folder}", style="dim"), soft_wrap=True)
        if self._out.is_terminal:
            self._live = Live(console=self._out, refresh_per_second=4, transient=True)
            self._live.start()

    def update(self, view: View) -> None:
        """Something changed."""
        if self._live:
            self._live.update(_panel(view))
        elif not self._quiet and view.steps and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self._out.print(_line(view), soft_wrap=True)

    def end(self) -> None:
        """The run is over; the live part disappears."""
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """One line that stays."""
        if not self._quiet:
            self._out.print(text, soft_wrap=True, markup=False)


def _panel(view: View) -> Group:
    table = Table.grid(padding=(0, 2))
    cells = [
        ("steps", f"{view.steps:,}" + (f" of {view.total:,}" if view.total else "")),
        ("steps/s", f"{view.fps:,.0f}"),
        ("reward", _reward(view)),
        ("time", clock_time(view.seconds) + (f", {clock_time(view.left)} left" if view.left is not None else "")),
    ]
    table.add_row(*(Text(name, style="dim") for name, _ in cells))
    table.add_row(*(Text(value) for _, value in cells))
    progress = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=view.total or 1, completed=view.steps if view.total else 0, width=60)
    progress.add_row(bar, Text(sparkline(view.curve)))
    return Group(table, progress, Text(view.bound))


def _reward(view: View) -> str:
    if view.reward is None:
        return "no episode yet"
    text = f"{view.reward:,.1f}" + (f" of {view.goal:,.1f}" if view.goal is not None else "")
    return text + (f", evaluated {view.evaluation:,.1f}" if view.evaluation is not None else "")


def _line(view: View) -> str:
    left = f", {clock_time(view.left)} left" if view.left else ""
    return (
        f"steps {view.steps:,}  steps/s {view.fps:,.0f}  reward {_reward(view)}  "
        f"episodes {view.episodes:,}  lag {view.lag:.1f}  time {clock_time(view.seconds)}{left}"
    )


def clock_time(seconds: float) -> str:
    """Seconds as people say them."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def sparkline(values: list[float], width: int = 40) -> str:
    """A curve in one line of text."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    points = [sum(part) / len(part) for part in (values[at : at + step] for at in range(0, len(values), step))]
    low, high = min(points), max(points)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[int((point - low) * scale)] for point in points)


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """What a run reached, in words."""
    reward = summary.get("ep_rew_mean")
    speed = f"{summary.get('fps') or 0:,.0f} steps/s"
    lines = [
        f"{summary['status']}: {summary['reason']}",
        "no episode ended" if reward is None else f"mean reward {reward:.1f} over the last 100 episodes",
        f"{summary.get('steps', 0):,} steps in {summary.get('seconds', 0):.1f} s: {speed}",
    ]
    if "bound" in summary:
        lines.append(summary["bound"])
    if "eval_mean_reward" in summary:
        lines.insert(2, f"evaluated at {summary['eval_mean_reward']:.1f}, best {summary['best_eval_mean_reward']:.1f}")
    return lines
