"""Whoever is killed while saving, wherever it was just then, leaves a latest checkpoint that is whole, and no rubbish.

A child saves checkpoints of about 3 MB over and over, prunes, and gets SIGKILL: at random moments, and before each
thing that it asks of the file system. A full disk leaves the same, and is said.
"""

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch

from srl.errors import UserError
from srl.params import checksum
from srl.params import file as checkpoints

# A forked child has none of its parent's threads.
torch.set_num_threads(1)

KEEP = 2
SIZE = 250_000


def saved(folder, steps, link="latest"):
    """Save what can be told apart by its steps, and prune."""
    weights = {"w": torch.full((SIZE,), float(steps))}
    training = None if link == "best" else {"moments": torch.full((2 * SIZE,), float(steps)), "steps": steps}
    checkpoints.save(folder, weights, {"steps": steps, "version": steps}, training, link)
    checkpoints.prune(folder, link, KEEP if link == "latest" else 1)


def steps_of_latest(folder):
    """The steps of the latest checkpoint: the one that the link names, and whole, as all are that look like one."""
    path = (folder / "latest").resolve()
    assert not [checksum.damage(other) for other in {path, *folder.glob("step_*")} if checksum.damage(other)]
    loaded = checkpoints.load(folder, "latest")
    assert loaded.path == path
    steps = loaded.meta["steps"]
    assert torch.equal(loaded.weights()["w"], torch.full((SIZE,), float(steps)))
    assert loaded.training()["steps"] == steps
    return steps


def child(work):
    """Do this in a process of its own."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    return pid


def was_killed(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def assert_tidy(folder, steps):
    """One more save leaves nothing of those that were killed."""
    saved(folder, steps)
    left = {path.name for path in folder.iterdir()} - {"latest", "best"}
    full = [name for name in left if not name.endswith("_best")]
    assert len(full) == KEEP
    assert len(left) <= KEEP + 1
    assert all(checksum.damage(folder / name) is None for name in left)


def test_a_hundred_kills_at_random_moments(tmp_path):
    chance, report = random.Random(4), os.pipe()
    os.set_blocking(report[0], False)
    started = time.perf_counter()
    saved(tmp_path / "trial", 0)
    span = time.perf_counter() - started
    folder, newest, tried, kills = tmp_path / "checkpoints", 0, 0, 0

    def work(start):
        for steps in range(start, 10**9):
            saved(folder, steps)
            os.write(report[1], steps.to_bytes(8, "little"))

    while kills < 100 or newest < 20:
        kills += 1
        pid = child(lambda start=tried + 1: work(start))
        time.sleep(chance.uniform(0, 3 * span))
        os.kill(pid, signal.SIGKILL)
        assert was_killed(pid), "it failed before it was killed"
        with contextlib.suppress(BlockingIOError):
            newest = int.from_bytes(os.read(report[0], 1 << 20)[-8:], "little")
        if newest or (folder / "latest").exists():
            assert steps_of_latest(folder) >= newest
        tried = max([newest, *(checksum.steps_of(path) for path in checksum.in_order(folder))])
        if kills % 10 == 0:
            tried += 1
            assert_tidy(folder, tried)


EVENTS = ("open", "os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "shutil.rmtree")


def killed_before(folder, number, work):
    """Whether a child was killed before it asked for the file system for the so-manieth time."""

    def doomed():
        left = number

        def hook(event, args):
            nonlocal left
            if event in EVENTS and any(str(folder) in str(word) for word in args):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        work()
        os._exit(0)

    return was_killed(child(doomed))


@pytest.mark.parametrize("link", ["latest", "best"])
def test_a_kill_before_each_thing_that_is_asked_of_the_file_system(tmp_path, link):
    for steps in range(1, KEEP + 1):
        saved(tmp_path, steps)
    saved(tmp_path, KEEP, "best")
    steps, number = KEEP + 1, 0
    while killed_before(tmp_path, number, lambda steps=steps: saved(tmp_path, steps, link)):
        latest = steps_of_latest(tmp_path)
        assert latest in ((steps - 1, steps) if link == "latest" else (KEEP,))
        assert checksum.damage((tmp_path / "best").resolve()) is None
        steps, number = (max(latest, checksum.steps_of(checksum.in_order(tmp_path)[-1])) + 1), number + 1
        if link == "latest":
            saved(tmp_path, steps)
            steps += 1
    assert number > 15
    assert_tidy(tmp_path, steps + 1)


def test_the_first_save_that_is_killed_leaves_no_latest_or_a_whole_one(tmp_path):
    number = 0
    while killed_before(tmp_path / str(number), number, lambda at=number: saved(tmp_path / str(at), 1)):
        folder = tmp_path / str(number)
        # Once it has its name, a checkpoint is found even where its link was not made.
        if checksum.in_order(folder):
            assert checkpoints.load(folder, "latest").training()["steps"] == 1
        else:
            with pytest.raises(UserError, match="no checkpoint"):
                checkpoints.load(folder, "latest")
        number += 1
    assert number > 8


@pytest.fixture
def small_disk(tmp_path):
    """A disk that has room for two checkpoints and a half."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = f"size={4 * 3 * SIZE * 5 // 2}"
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "srl-test", folder], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a disk here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_said_and_the_checkpoint_before_is_intact(small_disk):
    folder = small_disk / "checkpoints"
    saved(folder, 1)
    saved(folder, 2)
    for _ in range(3):
        with pytest.raises(UserError, match=r"cannot save a checkpoint in .*No space left.*older ones are intact"):
            saved(folder, 3)
        assert steps_of_latest(folder) == 2
        assert not (folder / ".latest").exists()
    checkpoints.prune(folder, "latest", 1)
    saved(folder, 3)
    assert steps_of_latest(folder) == 3


@pytest.mark.parametrize("limit", [100, 100_000, 3 * SIZE])
def test_a_quota_is_said_and_the_checkpoint_before_is_intact(tmp_path, limit):
    saved(tmp_path, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot save a checkpoint in .*File too large.*older ones are intact"):
            saved(tmp_path, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert steps_of_latest(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step_000000000001"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "checkpoints").write_bytes(b"")
    with pytest.raises(UserError, match="cannot save a checkpoint"):
        saved(tmp_path / "checkpoints" / "main", 1)
