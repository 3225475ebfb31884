"""Installs the peers of the comparison, each into a virtual environment of its own.

    python perf/peers/install.py                      all of them
    python perf/peers/install.py sb3 sample_factory   these

What a peer needs, and in which order, is written in peers.toml. A peer whose requirements have not changed since it was
installed is left alone. Only the standard library is used here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / ".peers"
MARK = "installed.json"
"""Written into a peer's environment when everything is in it: what was installed."""


def main() -> int:
    """Install the peers that were named."""
    peers = tomllib.loads((HERE / "peers.toml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(peers)}; all by default")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the environments are made [.peers]")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(peers):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(peers)}")
    failed = [name for name in options.peers or peers if not install(name, peers[name], options.folder / name)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def install(name: str, peer: dict[str, Any], folder: Path) -> bool:
    """Make the environment of one peer, unless it is there; True when it is."""
    wanted = json.dumps({"steps": peer["steps"], "environment": peer.get("environment", {})})
    mark = folder / MARK
    if mark.exists() and mark.read_text() == wanted:
        print(f"{name}: is there")
        return True
    mark.unlink(missing_ok=True)
    python = folder / "bin" / "python"
    commands = [] if python.exists() else [[sys.executable, "-m", "venv", str(folder)]]
    commands += [[str(python), "-m", "pip", "install", "-qq", *step] for step in peer["steps"]]
    environment = {key: value.format(here=HERE) for key, value in peer.get("environment", {}).items()}
    for command in commands:
        print(f"{name}: {' '.join(command)}", flush=True)
        if subprocess.run(command, env={**os.environ, **environment}).returncode:
            return False
    mark.write_text(wanted)
    print(f"{name}: done", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
