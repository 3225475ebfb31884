"""The table and the picture of a comparison, put where docs/performance.md shows them.

This module must not know how anything was measured.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

TITLES = {
    "w1": "W1: CartPole, PPO",
    "w2": "W2: Pong, PPO, 4 epochs",
    "w2e1": "W2e1: Pong, PPO, 1 epoch",
    "w3": "W3: HalfCheetah, PPO, 10 epochs",
    "w3e1": "W3e1: HalfCheetah, PPO, 1 epoch",
    "w5": "W5: Pong with an LSTM, 4 epochs",
    "w5e1": "W5e1: Pong with an LSTM, 1 epoch",
}
BEGIN, END = "<!-- table: perf/compare.py -->", "<!-- end -->"
OURS, THEIRS, BOUND = "#0b6e4f", "#9aa5b1", "#c1440e"


def draw(results: dict[str, Any], docs: Path) -> None:
    """Write the table into the page, and the picture beside it."""
    names = [name for name in TITLES if name in results]
    page = docs / "performance.md"
    table = "\n\n".join(_table(TITLES[name], results[name]) for name in names)
    text = page.read_text()
    page.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n\n{table}\n\n{END}", text, flags=re.DOTALL))
    _picture([(TITLES[name], results[name]) for name in names], docs / "pictures" / "peers.svg")


def _is_ours(row: dict[str, Any]) -> bool:
    return row["name"].startswith("SRL")


def _best_peer(result: dict[str, Any]) -> float:
    return max((row["steps_per_second"] for row in result["rows"] if not _is_ours(row)), default=0.0)


def _table(title: str, result: dict[str, Any]) -> str:
    best, bound = _best_peer(result), result["roofline"]["bound"]
    lines = [
        f"**{title}**; the roofline is {bound:,.0f} steps/s",
        "",
        "| program | steps/s | frames/s | against the best peer | of the roofline | CPU per step | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for row in sorted(result["rows"], key=lambda row: -row["steps_per_second"]):
        speed = row["steps_per_second"]
        mark = ""
        if row["differs"]:
            notes.append(f"{row['name']}: {row['differs']}")
            mark = " *"
        name = f"**{row['name']}**" if _is_ours(row) else f"{row['name']} ({row['options']})"
        ratio = f"{speed / best:.2f}x" if best else ""
        share = f"{speed / bound:.0%}" if row["name"] != "SRL, Gymnasium's vectorised CartPole" else "other environment"
        lines.append(
            f"| {name}{mark} | {speed:,.0f} ({row['slowest']:,.0f} to {row['fastest']:,.0f}) "
            f"| {row['frames_per_second']:,.0f} | {ratio} | {share} | {row['cpu_us_per_step']:,.0f} us "
            f"| {row['memory']:,.0f} MiB |"
        )
    return "\n".join([*lines, *(["", "\\* " + "; ".join(notes)] if notes else [])])


def _picture(results: list[tuple[str, dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "srl"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(results), 1, figsize=(8, 1.9 * len(results)), squeeze=False)
    for axis, (title, result) in zip(axes[:, 0], results, strict=True):
        rows = sorted(result["rows"], key=lambda row: row["steps_per_second"])
        rows = [row for row in rows if row["name"] != "SRL, Gymnasium's vectorised CartPole"]
        colours = [OURS if _is_ours(row) else THEIRS for row in rows]
        bars = axis.barh([row["name"] for row in rows], [row["steps_per_second"] for row in rows], color=colours)
        axis.bar_label(bars, [f"{row['steps_per_second']:,.0f}" for row in rows], padding=3, fontsize=8)
        axis.axvline(result["roofline"]["bound"], color=BOUND, linestyle="--", linewidth=1)
        axis.set_title(f"{title}, steps/s; dashed: roofline", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
