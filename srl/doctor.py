"""What is installed, what this machine can do, and what to do about what is missing."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from srl.memory import Memory, available_memory
from srl.recipes.placement import has_compiler
from srl.runs import version_of

NEEDED = ("torch", "numpy", "gymnasium", "msgspec", "safetensors", "pyyaml", "cloudpickle", "rich", "tensorboard")
OPTIONAL = {
    "imageio-ffmpeg": "recording videos: pip install 'srl[play]'",
    "pygame-ce": "windows and pictures of classic control: pip install 'srl[play]'",
    "ale-py": "Atari games: pip install 'srl[atari]'",
    "envpool": "EnvPool's environments, stepped by threads: pip install 'srl[envpool]'",
    "mujoco": "HalfCheetah, Ant and other bodies: pip install 'srl[mujoco]'",
    "vizdoom": "Doom: pip install 'srl[vizdoom]'",
    "box2d": "LunarLander and BipedalWalker: pip install 'srl[box2d]'",
}
FEW_DESCRIPTORS = 1024


def report() -> Iterator[str]:
    """Lines for a person; each problem says what to do."""
    yield from _packages()
    yield from _devices()
    yield from _machine()


def _packages() -> Iterator[str]:
    yield _line("python", sys.version.split()[0], sys.version_info >= (3, 11), "srl needs Python 3.11 or newer")
    for name in NEEDED:
        version = version_of(name)
        yield _line(name, version or "missing", version is not None, f"pip install {name}")
    for name, purpose in OPTIONAL.items():
        yield _line(name, version_of(name) or "not installed", True, "") + (
            "" if version_of(name) else f"; for {purpose}"
        )


def _devices() -> Iterator[str]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    yield _line("GPU", ", ".join(gpus) or "none; everything runs on the processor", True, "")
    yield _line("processor", torch.backends.cpu.get_cpu_capability(), True, "")
    from srl.models.precision import has_bfloat16

    short = [name for name in ("cpu", "cuda")[: 1 + bool(gpus)] if has_bfloat16(torch.device(name))]
    use = f"image encoders compute in it on {' and '.join(short)}" if short else "not in hardware; encoders use float32"
    yield _line("bfloat16", use, True, "")
    yield _line(
        "compiler", "found" if has_compiler() else "no C++ compiler; nothing is compiled, see --compile", True, ""
    )


def _machine() -> Iterator[str]:
    yield _line(
        "cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()), True, ""
    )
    memory = available_memory()
    yield _line("memory", f"{memory / 2**30:.1f} GiB available" if memory else "unknown", True, "")
    yield _shared_memory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _line(
        "descriptors", f"{soft} (at most {hard})", soft >= FEW_DESCRIPTORS, f"ulimit -n {hard} allows more workers"
    )
    free = shutil.disk_usage(Path.cwd()).free
    yield _line("disk", f"{free / 2**30:.1f} GiB free here", free > 2**30, "make room, or use --runs DIR elsewhere")


def _shared_memory() -> str:
    try:
        Memory(2**20).close()
    except (OSError, MemoryError) as error:
        return _line("shared memory", str(error), False, "the local launcher cannot run; use --launcher serial")
    return _line("shared memory", "anonymous, bounded by memory only", True, "")


def _line(name: str, said: str, good: bool, advice: str) -> str:
    return f"{'ok ' if good else '!! '} {name:16} {said}" + ("" if good or not advice else f"; {advice}")
