"""The tables and the picture of what perf/scaling.py measured, put where docs/scaling.md shows them.

This module must not know how anything was measured.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from draw import BOUND, OURS, THEIRS

END = "<!-- end -->"
KINDS = {
    "actors": ("actor", "env runner"),
    "policy worker": ("policy",),
    "relays": ("relay",),
    "trainer": ("trainer", "learner"),
    "control": ("control", "host"),
    "Ray": ("ray",),
}
COLOURS = (OURS, "#4f9d7e", BOUND, "#e0a458", "#6b7a8f", "#c9d1d9")


def draw(found: dict[str, Any], docs: Path) -> None:
    """Write the tables into the page, and the picture beside it."""
    page = docs / "scaling.md"
    text = page.read_text()
    for name, table in (("actors", _actors), ("edges", _edges), ("peer", _peer)):
        begin = f"<!-- table: perf/scaling.py {name} -->"
        lines = "\n".join(table(list(found[name].values())))
        text = re.sub(f"{begin}.*?{END}", lambda _, s=f"{begin}\n\n{lines}\n\n{END}": s, text, flags=re.DOTALL)
    page.write_text(text)
    _picture(found, docs / "pictures" / "scaling.svg")


def parts(row: dict[str, Any]) -> dict[str, float]:
    """Microseconds per step of the system, by kind of process: without environments, acting and learning."""
    inside = row["inside"]
    taken = {name: sum(row["cpu_us"].get(kind, 0.0) for kind in kinds) for name, kinds in KINDS.items()}
    taken["actors"] -= inside["env"]
    taken["actors" if row["act"] == "inline" else "policy worker"] -= inside["act"]
    taken["trainer"] -= inside["train"]
    return taken


def _actors(rows: list[dict[str, Any]]) -> list[str]:
    head = ["sleep", "actors", "steps/s", "of the ideal", "processors busy", "CPU per step", "of it system"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in sorted(rows, key=lambda row: (row["sleep"], row["actors"])):
        share, total = row["steps_per_second"] / row["ideal"], sum(row["cpu_us"].values())
        lines.append(
            f"| {row['sleep'] * 1000:.0f} ms | {row['actors']} | {row['steps_per_second']:,.0f} | {share:.0%} "
            f"| {row['busy']:.0%} | {total:.0f} us | {row['system_us']:.0f} us |"
        )
    return lines


def _edges(rows: list[dict[str, Any]]) -> list[str]:
    head = ["edges", "environments, acting, learning", *KINDS, "system without Ray"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        of = parts(row)
        own = sum(us for name, us in of.items() if name != "Ray")
        figures = [sum(row["inside"].values()), *of.values(), own]
        lines.append(f"| {row['edge']} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")
    return lines


def _peer(rows: list[dict[str, Any]]) -> list[str]:
    head = [
        "actors",
        "program",
        "of the ideal",
        "total",
        "environments, acting, learning",
        "system",
        "against SRL on Ray",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    ours = {row["actors"]: row for row in rows if row["program"] == "SRL on Ray"}
    for row in sorted(rows, key=lambda row: row["actors"]):
        base = ours[row["actors"]]
        ratio = f"{row['system_us'] / base['system_us']:.1f}x, in all {total(row) / total(base):.1f}x"
        share = row["steps_per_second"] / row["ideal"]
        lines.append(
            f"| {row['actors']} | {row['program']} | {share:.0%} | {total(row):,.0f} us "
            f"| {sum(row['inside'].values()):,.0f} us | {row['system_us']:,.0f} us | {ratio} |"
        )
    return lines


def total(row: dict[str, Any]) -> float:
    """Microseconds per step of all processes."""
    return sum(row["cpu_us"].values())


def _picture(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "srl"
    from matplotlib import pyplot

    figure, (speed, cost, peer) = pyplot.subplots(1, 3, figsize=(12, 3.4), width_ratios=(1.1, 1.2, 1))
    _draw_speed(speed, sorted(found["actors"].values(), key=lambda row: row["actors"]))
    _draw_cost(cost, list(found["edges"].values()))
    _draw_peer(peer, list(found["peer"].values()))
    for axis in (speed, cost, peer):
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _draw_speed(axis: Any, rows: list[dict[str, Any]]) -> None:
    for sleep, colour in zip(sorted({row["sleep"] for row in rows}), (OURS, "#e0a458"), strict=False):
        some = [row for row in rows if row["sleep"] == sleep]
        counts = [row["actors"] for row in some]
        axis.plot(counts, [row["ideal"] for row in some], color=BOUND, linestyle="--", linewidth=1)
        name = f"{sleep * 1000:.0f} ms a step"
        axis.plot(counts, [row["steps_per_second"] for row in some], color=colour, marker="o", markersize=4, label=name)
        for row in some[-3:]:
            place = (row["actors"], row["steps_per_second"])
            axis.annotate(f"{row['busy']:.0%}", place, (4, -10), textcoords="offset points", fontsize=7)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=10)
    counts = sorted({row["actors"] for row in rows})
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.set_title(
        "steps/s by actors over four hosts; dashed: ideal;\nbeside points: processors busy", fontsize=9, loc="left"
    )
    axis.legend(fontsize=8, frameon=False)


def _draw_cost(axis: Any, rows: list[dict[str, Any]]) -> None:
    names, left = [row["edge"] for row in rows][::-1], [0.0] * len(rows)
    for kind, colour in zip(KINDS, COLOURS, strict=True):
        widths = [max(0.0, parts(row)[kind]) for row in rows][::-1]
        axis.barh(names, widths, left=left, color=colour, label=kind)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axis.set_title("system, us of processor time per step", fontsize=9, loc="left")
    axis.legend(fontsize=7, frameon=False)


def _draw_peer(axis: Any, rows: list[dict[str, Any]]) -> None:
    counts = sorted({row["actors"] for row in rows})
    programs = ("SRL", "SRL on Ray", "RLlib")
    for at, (program, colour) in enumerate(zip(programs, ("#4f9d7e", OURS, THEIRS), strict=True)):
        by_count = {row["actors"]: row["system_us"] for row in rows if row["program"] == program}
        places = [place + 0.27 * (at - 1) for place in range(len(counts))]
        bars = axis.bar(places, [by_count[count] for count in counts], 0.25, color=colour, label=program)
        axis.bar_label(bars, [f"{by_count[count]:,.0f}" for count in counts], fontsize=7)
    axis.set_xticks(range(len(counts)), [f"{count} actors" for count in counts])
    axis.margins(y=0.25)
    axis.set_title("system with Ray, us per step", fontsize=9, loc="left")
    axis.legend(fontsize=8, frameon=False)
