"""Whatever a config, a checkpoint or a run folder has become, reading it gives what it says or a UserError.

A small run is made once. Each case takes a copy, mutates one file of it by its seed, and reads it in every way srl
does. That may not take long, raise anything else, or execute anything: a payload that is executed leaves a mark.
`pytest -m fuzz` tries 10,000 cases, the default a part of them.
"""

import contextlib
import io
import json
import os
import pickle
import random
import shutil
import time
from pathlib import Path

import msgspec
import pytest
import torch
import yaml

import srl
from srl import cli, control, runs
from srl.envs.fake import Recall
from srl.errors import UserError
from srl.experiment import Experiment
from srl.files import text_of
from srl.metrics import STEPS, read_rows
from srl.params import checksum
from srl.params import file as checkpoints
from srl.recipes.ppo import ppo
from srl.rewind import rewind
from srl.settings import demand_trust, from_yaml, to_yaml
from srl.store import Store
from srl.workers.trainer import Progress

torch.set_num_threads(1)

LONGEST = 5.0
"""Seconds that reading may take."""
CHECKPOINT = ("meta.json", "weights.safetensors", "training.pt", "SHA256SUMS")
RUN = ("summary.json", "metrics.jsonl", "experiment.yaml", "store.sqlite")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with two checkpoints, a best, metrics and a store."""
    folder = tmp_path_factory.mktemp("whole")
    experiment = ppo(Recall, steps=64, envs=4, rollout=8, hidden=(8,), memory="lstm")
    run = runs.Run(control.train(experiment, launcher="serial", runs_folder=folder, name="run", quiet=True).path)
    latest = checkpoints.load(run.checkpoints("main"), "latest")
    store = Store(run.path / "store.sqlite")
    for steps, link in ((32, "latest"), (64, "latest"), (32, "best")):
        meta = {**latest.meta, "steps": steps, "version": steps // 32, "mean_reward": 1.0}
        training = latest.training() if link == "latest" else None
        path = checkpoints.save(run.checkpoints("main"), latest.weights(), meta, training, link)
        store.add_version("main", steps // 32, steps, 1.0, 0.5, path.name)
    store.add_evaluation("main", 1, 32, 1.0, 0.0, 5, 8.0)
    store.tag("main", 1, "good")
    (run.path / "metrics.jsonl").write_bytes(
        b"".join(
            msgspec.json.encode({STEPS: steps, "rollout/ep_rew_mean": 0.5, "time/fps": 1e3}) + b"\n"
            for steps in range(8)
        )
    )
    return run.path


@pytest.fixture(scope="module")
def mark(whole, tmp_path_factory):
    """A file that only a payload would make; beside it lies one that links lead to, and that nobody may change."""
    folder = tmp_path_factory.mktemp("mark")
    shutil.copy(whole / "store.sqlite", folder / "outside")
    return folder / "executed"


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, call, *args):
        self.reduced = call, args

    def __reduce__(self):
        return self.reduced


# Mutations of bytes: whatever a disk or an editor may do.


def flipped(chance, data):
    changed = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 2, 8, 64))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance, data):
    return data[: chance.randrange(len(data) + 1)]


def inserted(chance, data):
    at, size = chance.randrange(len(data) + 1), chance.choice((1, 4, 100, 5000))
    return data[:at] + chance.choice((bytes(size), chance.randbytes(size), b"\xff" * size, data[:size])) + data[at:]


def removed(chance, data):
    start, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return data[:start] + data[min(end, start + 1000) :]


def zeroed(chance, data):
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((1, 8, 512, 4096)))
    return data[:start] + bytes(end - start) + data[end:]


def huge(chance, data):
    """A number becomes one that nobody can count to, or many."""
    digits = [at for at, byte in enumerate(data) if 48 <= byte <= 57] or [0]
    at = chance.choice(digits)
    number = chance.choice(
        (b"9" * 9, b"9" * 20, b"9" * 5000, b"-1", b"1e999", b"0x" + b"f" * 40, b"1:60:60", b".inf", b".nan")
    )
    return data[:at] + number + data[at + 1 :]


def nested(chance, data):
    opening = chance.choice((b"[", b'{"a":', b"- ", b"? ", b"(", b"!!set {"))
    at = chance.choice((0, len(data) // 2, len(data)))
    return data[:at] + opening * chance.choice((50, 1000, 100_000)) + data[at:]


BYTES = (flipped, flipped, cut, inserted, removed, zeroed, huge, nested)


# Mutations of plain data: the file is well written, and says something else.


def odd(chance, mark):
    """Something that does not belong where it will be."""
    command = f"touch {mark}"
    return chance.choice(
        (
            None, True, False, 0, -1, 10**9, 2**63, 2**200, 0.5, 1e308, "", "x", "\0", "é" * 9, "/dev/null", "../..",
            [], {}, [[]], [None], {"": ""}, {"type": 1}, {"a": {"b": [1]}}, ["x"] * 1000, "os:system", "srl.cli:main",
            {"type": "os:system", "command": command}, {"type": "subprocess:Popen", "args": ["touch", str(mark)]},
            {"type": "builtins:eval"}, {"type": ".x:y"}, {"type": "srl.control:Result"},
            {"type": "srl.models.config:MLP"},
            {"type": "srl..x:y"}, {"type": ":"}, {"type": "srl.experiment:Stop", "steps": 5}, {"type": []},
            {"tree": {}}, {"tree": None}, "1e400", "nan", float("inf"), float("nan"), {"tree": {"a": {"tree": {}}}},
        )
    )  # fmt: skip


def replaced(chance, value, mark):
    """The value with one part, at any depth, replaced, removed or added."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or chance.random() < 0.15:
        return odd(chance, mark)
    key, how = chance.choice(keys), chance.random()
    value = value.copy()
    if how < 0.75:
        value[key] = replaced(chance, value[key], mark)
    elif how < 0.85:
        del value[key]
    elif isinstance(value, dict):
        value[chance.choice((1, None, "x", "type", "tree", "format"))] = odd(chance, mark)
    else:
        value.append(odd(chance, mark))
    return value


YAML = (
    "!!python/object/apply:os.system ['touch {mark}']", "!!python/object/new:os.system ['touch {mark}']",
    "!!python/name:os.system", "!!python/module:os", "!!binary xx", "!!timestamp 2001-99-99", "2001-99-99",
    "!!set {{a, b}}",
    "!!omap [a: 1]", "!!float x", "!!int x", "!!int 0b", "!unknown x", "*missing", "&a [*a]", "&a {{b: *a}}", "<<: 1",
    "? [a, b]\n: c", "a: 1\na: 2", "%YAML 9.9\n---\n", "--- a\n--- b", "\t", "0o9", "1__0", "0b", "-", "190:20:30.15",
)  # fmt: skip
_MORE = [f"{b}: &{b} [{','.join(['*' + a] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
LAUGHS = f"{{a: &a [x,x,x,x,x,x,x,x,x,x], {', '.join(_MORE)}}}"
"""A line that says x a thousand million times."""


def config(chance, data, mark):
    """Mutated YAML."""
    how, text = chance.random(), data.decode()
    if how < 0.5:
        return yaml.safe_dump(replaced(chance, yaml.safe_load(text), mark), allow_unicode=True).encode()
    if how < 0.52:
        return text.replace("env_kwargs: {}", f"env_kwargs: {LAUGHS}").encode()
    if how < 0.75:
        lines = text.splitlines()
        at = chance.randrange(len(lines))
        key = lines[at].partition(":")[0]
        lines[at] = f"{key}: {chance.choice(YAML).format(mark=mark)}"
        return "\n".join(lines).encode()
    return chance.choice(BYTES)(chance, data)


def spoken(chance, data, mark):
    """Mutated JSON, a line of it where there are several."""
    lines = data.splitlines()
    if chance.random() < 0.4 or not lines:
        return chance.choice(BYTES)(chance, data)
    at = chance.randrange(len(lines)) if len(lines) < 9 else 0
    whole = json.loads(data) if at == 0 and len(lines) > 9 else json.loads(lines[at])
    text = json.dumps(replaced(chance, whole, mark)).encode()
    return text if len(lines) > 9 else b"\n".join([*lines[:at], text, *lines[at + 1 :]])


def tensors(chance, data, mark):
    """A mutated header of safetensors before the same data."""
    if chance.random() < 0.5:
        return chance.choice(BYTES)(chance, data)
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(replaced(chance, json.loads(data[8 : 8 + size]), mark)).encode()
    said = chance.choice((len(header), len(header), 0, 2**63, 2**32, len(header) + 1))
    return said.to_bytes(8, "little") + header + data[8 + size :]


def state(chance, data, mark):
    """Mutated training state, or a payload that looks like one."""
    how = chance.random()
    if how < 0.4:
        return chance.choice(BYTES)(chance, data)
    buffer = io.BytesIO()
    if how < 0.7:
        torch.save(replaced(chance, torch.load(io.BytesIO(data), weights_only=True), mark), buffer)
        return buffer.getvalue()
    calls = ((os.system, f"touch {mark}"), (open, str(mark), "w"), (eval, f"open({str(mark)!r}, 'w')"))
    payload = Payload(*chance.choice(calls))
    inside = chance.choice((payload, {"learner": payload}, {"progress": {}, "learner": {"optimizer": [payload]}}))
    if how < 0.9:
        torch.save(inside, buffer, _use_new_zipfile_serialization=how < 0.85)
        return buffer.getvalue()
    return pickle.dumps(inside, protocol=chance.choice((0, 2, 4)))


def bytes_of(chance, data, mark):
    return chance.choice(BYTES)(chance, data)


MUTATIONS = {
    "meta.json": spoken, "weights.safetensors": tensors, "training.pt": state, "SHA256SUMS": bytes_of,
    "summary.json": spoken, "metrics.jsonl": spoken, "experiment.yaml": config, "store.sqlite": bytes_of,
}  # fmt: skip


def misplaced(chance, path, outside):
    """The file is gone, or something else is in its place."""
    how = chance.choice(("gone", "folder", "swapped", "link", "endless", "pipe", "loop", "empty"))
    other = path.parent / chance.choice(sorted(p.name for p in path.parent.iterdir() if p.is_file()))
    data = other.read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "swapped":
        path.write_bytes(data)
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "empty":
        path.touch()
    elif how != "gone":
        path.symlink_to({"link": outside, "endless": "/dev/zero", "loop": path.name}[how])


def mutated(chance, path, mark):
    """Change one file by the seed."""
    if chance.random() < 0.1:
        misplaced(chance, path, mark.with_name("outside"))
    else:
        path.write_bytes(MUTATIONS[path.name](chance, path.read_bytes(), mark))


def sealed(folder):
    """Whoever changed a checkpoint may have written matching digests."""
    files = {name: (folder / name).read_bytes() for name in CHECKPOINT[:3] if (folder / name).is_file()}
    sums = folder / "SHA256SUMS"
    # Never written through: it may have become a link that leads anywhere.
    if sums.is_file() and not sums.is_symlink():
        sums.write_bytes(checksum.sums_of(files))


# What is read, and what reading may give.


def read_config(path):
    experiment = from_yaml(Experiment, text_of(path))
    experiment.check()
    demand_trust(experiment)
    assert from_yaml(Experiment, to_yaml(experiment)) == experiment or "nan" in to_yaml(experiment)


def read_checkpoint(path):
    trained = srl.load(path, "latest")
    action, _ = trained.predict([1.0, 0.0])
    assert action is not None


def read_training(path):
    checkpoint = checkpoints.load(path / "checkpoints" / "main", "latest")
    with checkpoint.fits():
        Progress.from_plain(checkpoint.training()["progress"])


def read_run(path):
    run = runs.find(path.parent, "run")
    assert isinstance(run.summary()["status"], str)
    run.experiment()


def read_list(path):
    assert cli.main(["list", "--runs", str(path.parent)]) == 0


def read_metrics(path):
    assert all(isinstance(row, dict) for row in read_rows(path / "metrics.jsonl"))
    rewind(path, 3)


def read_store(path):
    store = Store(path / "store.sqlite")
    for row in store.versions("main"):
        assert all((path / "checkpoints" / "main" / folder).is_dir() for folder in row.folders)
    store.find("main", "best")
    store.add_evaluation("main", 7, 7, 1.0, 0.0, 1, 1.0)


READERS = (read_checkpoint, read_training, read_run, read_list, read_metrics, read_store)


def tried(read, path, mark, case):
    """Read, and say what it gave; anything but an answer or a UserError is a failure that names the case."""
    started = time.monotonic()
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            read(path)
        given = "fine"
    except UserError:
        given = "refused"
    except BaseException as error:
        raise AssertionError(f"{case}: {read.__name__} raised {type(error).__name__}: {error}") from error
    assert time.monotonic() - started < LONGEST, f"{case}: {read.__name__} took too long"
    assert not mark.exists(), f"{case}: {read.__name__} executed what it read"
    assert set(mark.parent.iterdir()) == {mark.with_name("outside")}, f"{case}: {read.__name__} left something outside"
    return given


def one_config(seed, whole, folder, mark):
    path = folder / "experiment.yaml"
    path.write_bytes(config(random.Random(seed), (whole / "experiment.yaml").read_bytes(), mark))
    yield read_config, path


def one_checkpoint(seed, whole, folder, mark):
    chance, path = random.Random(seed), folder / "run"
    shutil.copytree(whole, path, symlinks=True)
    target = (path / "checkpoints" / "main" / "latest").resolve()
    # Nothing else that is intact is left to be taken instead.
    for other in set(target.parent.glob("step_*")) - {target}:
        shutil.rmtree(other)
    mutated(chance, target / chance.choice(CHECKPOINT), mark)
    if chance.random() < 0.7:
        sealed(target)
    yield read_checkpoint, path
    yield read_training, path


def one_run(seed, whole, folder, mark):
    chance, path = random.Random(seed), folder / "run"
    shutil.copytree(whole, path, symlinks=True)
    name = chance.choice(RUN)
    mutated(chance, path / name, mark)
    for read in READERS:
        if name == "experiment.yaml" or read not in (read_checkpoint, read_training):
            yield read, path


MAKERS = {"config": one_config, "checkpoint": one_checkpoint, "run": one_run}
CASES = [pytest.param(kind, start, id=f"{kind}-{start}") for kind in MAKERS for start in range(0, 500, 100)]
MORE = [
    pytest.param(kind, start, id=f"{kind}-{start}", marks=pytest.mark.fuzz)
    for kind, end in (("config", 4000), ("checkpoint", 3000), ("run", 3000))
    for start in range(500, end, 100)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "start"), [*CASES, *MORE])
def test_mutated_inputs_are_read_or_refused(kind, start, whole, tmp_path, mark):
    given = []
    for seed in range(start, start + 100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        given += [tried(read, path, mark, f"{kind} {seed}") for read, path in MAKERS[kind](seed, whole, folder, mark)]
        shutil.rmtree(folder)
    assert mark.with_name("outside").read_bytes() == (whole / "store.sqlite").read_bytes()
    # Otherwise the mutations would be too wild or too tame to find anything.
    assert given.count("refused") > 20
    assert given.count("fine") > 2


def test_what_is_not_mutated_is_read(whole, tmp_path, mark):
    shutil.copytree(whole, tmp_path / "run", symlinks=True)
    for read in READERS:
        assert tried(read, tmp_path / "run", mark, "whole") == "fine"
    assert tried(read_config, Path(whole / "experiment.yaml"), mark, "whole") == "fine"
