"""What deploy/slurm.sh needs of Slurm's `srun`, with namespaces for nodes: `srun.py [OPTIONS] COMMAND ...`.

NAMESPACES in the environment has one for each node of SLURM_JOB_NODELIST. As the real one, it runs the command on each
node, hands SIGTERM on to it, and ends with the worst of the exit codes.
"""

import argparse
import os
import signal
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--ntasks", type=int, required=True)
    parser.add_argument("--ntasks-per-node", type=int, default=1)
    parser.add_argument("--nodelist", default="")
    parser.add_argument("--cpus-per-task", type=int)
    parser.add_argument("--export", choices=["ALL"], required=True)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--kill-on-bad-exit", choices=["0"])
    parser.add_argument("--wait", choices=["0"])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    nodes = os.environ["SLURM_JOB_NODELIST"].split(",")
    namespaces = dict(zip(nodes, os.environ["NAMESPACES"].split(","), strict=True))
    chosen = [node for node in nodes if asked.nodelist in ("", node)][: asked.ntasks]
    assert len(chosen) == asked.ntasks, f"{asked.ntasks} tasks on {chosen}"
    tasks = []
    for number, node in enumerate(chosen):
        argv = ["nsenter", f"--net=/run/netns/{namespaces[node]}", "--", *asked.command]
        tasks.append(subprocess.Popen(argv, env={**os.environ, "SLURM_NODEID": str(number)}, stdin=subprocess.DEVNULL))

    def hand_on(number: int, _: object) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    return max(abs(task.wait()) for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
