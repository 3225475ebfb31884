"""Learning curves of runs as one picture: mean reward of the last 100 episodes over frames.

srl train ppo --env PongNoFrameskip-v4 --seed 1 --name pong_1
python perf/curves.py --out docs/pictures/pong.svg --goal 18 runs/pong_1 runs/pong_2
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from srl.metrics import STEPS, read_rows

REWARD = "rollout/ep_rew_mean"


def main() -> int:
    """Draw the curves of the run folders that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg")
    parser.add_argument("--title", default="")
    parser.add_argument("--goal", type=float, help="a score to draw a line at")
    options = parser.parse_args()

    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "srl"
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3.6))
    for run in options.runs:
        summary = msgspec.json.decode((run / "summary.json").read_bytes())
        per_step = (summary.get("frames") or summary["steps"]) / max(1, summary["steps"])
        rows = [row for row in read_rows(run / "metrics.jsonl") if REWARD in row]
        axis.plot([row[STEPS] * per_step / 1e6 for row in rows], [row[REWARD] for row in rows], label=run.name)
    if options.goal is not None:
        axis.axhline(options.goal, color="#c1440e", linestyle="--", linewidth=1)
    axis.set(xlabel="million frames", ylabel="mean reward, last 100 episodes", title=options.title)
    axis.legend(fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    options.out.parent.mkdir(exist_ok=True, parents=True)
    figure.savefig(options.out, metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
