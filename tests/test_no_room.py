"""A full disk, a read-only folder, little shared memory, few descriptors, a reader that dies: said, and survived."""

import contextlib
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from srl.metrics import STEPS, read_rows
from srl.params import checksum
from tests import runs_of

IN_TIME = 30.0
SHAPE = ["--envs", "8", "--rollout", "32", "--minibatches", "1", "--epochs", "1", "--no-compile"]
SHAPE += ["--set", "log_every=1000", "--set", "checkpoint_every=20_000"]
FOREVER = [*SHAPE, *runs_of.FOREVER[:4], "--eval-every", "5000"]
SRL = [sys.executable, "-m", "srl.cli"]


class Disk:
    """A small disk of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"

    def fill(self) -> None:
        """Until nothing more fits; the file has its place already."""
        with contextlib.suppress(OSError), (self.folder / "filler").open("ab", buffering=0) as file:
            for size in (2**16, 2**12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)


def mounted(folder: Path, options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "srl-test", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("may not mount a disk here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    mounted(tmp_path / "disk", "size=8m")
    yield Disk(tmp_path / "disk")
    subprocess.run(["umount", "--lazy", tmp_path / "disk"], check=True)


class Started:
    """A run under way, whose words go to a file beside its disk."""

    def __init__(self, disk: Disk, *words: str) -> None:
        self.words = disk.folder.parent / "words"
        command = [*SRL, "train", "ppo", *words, "--runs", str(disk.folder), "--name", "run"]
        with self.words.open("w") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, cwd=disk.folder.parent)

    def wait_for(self, what, seconds: float = 2 * IN_TIME):
        until = time.monotonic() + seconds
        while not (found := what()):
            assert self.process.poll() is None, self.words.read_text()
            assert time.monotonic() < until, self.words.read_text()
            time.sleep(0.05)
        return found

    def said(self, *parts: str) -> None:
        for part in parts:
            self.wait_for(lambda part=part: part in self.words.read_text())

    def finish(self) -> dict:
        """Interrupt it; nothing is left behind."""
        processes = runs_of.family(self.process)
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(IN_TIME) == 130, self.words.read_text()
        runs_of.assert_gone(processes)
        return json.loads((self.words.parent / "disk" / "run" / "summary.json").read_text())


def latest_of(disk: Disk) -> Path:
    """The latest checkpoint, which is intact."""
    latest = (disk.run / "checkpoints" / "main" / "latest").resolve()
    assert checksum.damage(latest) is None
    return latest


def started(disk: Disk, *words: str) -> Started:
    run = Started(disk, *words)
    run.wait_for((disk.run / "checkpoints" / "main" / "latest").exists)
    return run


def test_training_goes_on_while_the_disk_is_full(disk: Disk) -> None:
    run = started(disk, *FOREVER)
    disk.fill()
    run.said("cannot save a checkpoint", "No space left on device", "older ones are intact")
    run.said("no metrics are written by JsonLines: No space left on device; the run goes on")
    run.said("no metrics are written by TensorBoard")
    old = latest_of(disk)
    disk.free()
    run.said("metrics are written by JsonLines again", "metrics are written by TensorBoard again")
    run.wait_for(lambda: latest_of(disk) != old)
    summary = run.finish()
    assert (summary["status"], summary["restarts"]) == ("interrupted", 0)
    lines = (disk.run / "metrics.jsonl").read_bytes().splitlines()
    assert len(lines) == len(read_rows(disk.run / "metrics.jsonl")), "a line is torn"
    # Each has lost what found no room in it, and nothing else.
    events, rows = curve(disk.run), [row[STEPS] for row in read_rows(disk.run / "metrics.jsonl") if "train/loss" in row]
    assert (events, rows) == (sorted(set(events)), sorted(set(rows)))
    assert (events[:3], events[-3:]) == (rows[:3], rows[-3:])
    assert "Traceback" not in run.words.read_text()


def curve(run: Path) -> list[int]:
    reader = EventAccumulator(str(run))
    reader.Reload()
    return [event.step for event in reader.Scalars("train/loss")]


def test_a_run_that_ends_on_a_full_disk_says_so_and_goes_on_later(disk: Disk) -> None:
    run = Started(disk, *SHAPE, "--steps", "60000", "--stop-at-reward", "1e9")
    run.wait_for((disk.run / "checkpoints" / "main" / "latest").exists)
    disk.fill()
    assert run.process.wait(2 * IN_TIME) == 2
    text = run.words.read_text()
    assert "cannot save a checkpoint" in text.splitlines()[-1]
    assert "Traceback" not in text
    assert checksum.steps_of(latest_of(disk)) < 60_000
    disk.free()
    resumed = subprocess.run([*SRL, "resume", str(disk.run)], capture_output=True, text=True, timeout=120, check=False)
    assert resumed.returncode == 0, resumed.stderr
    assert checksum.steps_of(latest_of(disk)) >= 60_000


def test_no_run_begins_on_a_full_disk(disk: Disk) -> None:
    disk.fill()
    run = Started(disk, *SHAPE)
    assert run.process.wait(IN_TIME) == 2
    (line,) = [line for line in run.words.read_text().splitlines() if line.startswith("srl: ")]
    assert "No space left on device" in line
    assert "Traceback" not in run.words.read_text()


def test_a_read_only_folder_is_said_and_what_only_reads_still_works(disk: Disk) -> None:
    run = Started(disk, *SHAPE, "--steps", "2000", "--eval-every", "1000")
    assert run.process.wait(2 * IN_TIME) == 0, run.words.read_text()
    disk.make_read_only()

    def done(*words: str) -> subprocess.CompletedProcess[str]:
        where = ["--runs", str(disk.folder)]
        return subprocess.run([*SRL, *words, *where], capture_output=True, text=True, timeout=120, check=False)

    for words in (["train", "ppo", *SHAPE], ["resume", "run", "--steps", "9000"], ["tag", "run", "latest", "good"]):
        refused = done(*words)
        assert refused.returncode == 2, refused.stderr
        assert "Read-only file system" in refused.stderr or "cannot write" in refused.stderr
        assert "Traceback" not in refused.stderr
    for words in (["list"], ["versions", "run"], ["eval", "run", "--episodes", "1"]):
        read = done(*words)
        assert read.returncode == 0, read.stderr


def test_training_goes_on_while_its_checkpoints_cannot_be_written(disk: Disk) -> None:
    run = started(disk, *FOREVER)
    latest_of(disk)
    mounted(disk.run / "checkpoints", "ro")
    try:
        run.said("Read-only file system")
        steps = read_rows(disk.run / "metrics.jsonl")[-1][STEPS]
        run.wait_for(lambda: read_rows(disk.run / "metrics.jsonl")[-1][STEPS] > steps + 20_000)
    finally:
        subprocess.run(["umount", disk.run / "checkpoints"], check=True)
    old = latest_of(disk)
    run.wait_for(lambda: latest_of(disk) != old)
    assert run.finish()["restarts"] == 0


def test_a_small_shared_memory_disk_is_enough(tmp_path: Path) -> None:
    """The run's 90 MB are anonymous memory, which the 64 MB of /dev/shm in a container do not limit."""
    words = [
        "--env",
        "PongNoFrameskip-v4",
        "--rollout",
        "128",
        "--max-lag",
        "5",
        "--steps",
        "2048",
        "--no-compile",
        "--runs",
        str(tmp_path),
    ]
    small = 'mount -t tmpfs -o size=64m srl-test /dev/shm && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", small, "sh", "true"], capture_output=True, check=False).returncode:
        pytest.skip("may not mount a disk here")
    command = ["unshare", "-m", "sh", "-c", small, "sh", *SRL]
    shown = subprocess.run([*SRL, "show", "ppo", *words[:-2]], capture_output=True, text=True, timeout=60, check=True)
    needs = float(next(line for line in shown.stdout.splitlines() if "shared memory" in line).split()[2])
    assert needs > 64
    done = subprocess.run([*command, "train", "ppo", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("hard", "code"), [(90, 2), (1000, 0)])
def test_few_descriptors_are_raised_as_far_as_allowed_or_said(tmp_path: Path, hard: int, code: int) -> None:
    words = ["--envs", "20", "--actors", "20", "--rollout", "8", "--steps", "500", "--runs", str(tmp_path)]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, hard))

    command = [*SRL, "train", "ppo", *words, "--no-compile", "--minibatches", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limit)
    assert done.returncode == code, done.stderr
    assert (f"file descriptors and may have {hard}; see ulimit -n" in done.stderr) == bool(code)
    assert "Traceback" not in done.stderr


READER = """
import sys, time
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
reader = EventAccumulator(sys.argv[1])
while True:
    reader.Reload()
    if reader.Tags()["tensors"]:
        print("read", flush=True)
"""


def test_a_killed_tensorboard_reader_is_nothing_to_a_run(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", *FOREVER)
    runs_of.wait_until_training(tmp_path, run)
    with subprocess.Popen([sys.executable, "-c", READER, str(tmp_path / "run")], stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"read\n"
        reader.kill()
    steps = read_rows(tmp_path / "run" / "metrics.jsonl")[-1][STEPS]
    until = time.monotonic() + IN_TIME
    while read_rows(tmp_path / "run" / "metrics.jsonl")[-1][STEPS] < steps + 20_000:
        assert time.monotonic() < until
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=IN_TIME)
    assert run.returncode == 130, errors
    assert curve(tmp_path / "run") == [
        row[STEPS] for row in read_rows(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row
    ]
