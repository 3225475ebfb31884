"""Environments in processes of their own: whatever happens to one costs its own row, and nothing is left behind."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from srl.envs import zygote
from srl.envs.base import EnvBatch, make
from srl.envs.fake import Counting, Masked, Nested, Slow
from srl.envs.fake_faults import KINDS, FaultyCartPole
from srl.envs.faults import Limits, TooManyFaults
from srl.envs.gym import seeds
from srl.envs.isolated import Isolated
from srl.envs.kept import put_back, state_of, why_not
from srl.envs.state import from_bytes, to_bytes
from srl.errors import UserError
from srl.tree import index, leaves, tree_map

from .arrays import arrays

SIZE, SEED = 3, 5
MANY = Limits(limit_seconds=20, reset_seconds=20, max_faults=10_000)
SOON = Limits(limit_seconds=0.5, reset_seconds=20, max_faults=10_000)
KIND = {"raises": "raised", "resets": "raised", "hangs": "hung", "stops": "hung", "nans": "nan", "shapes": "shape"}
KIND |= dict.fromkeys(("aborts", "segfaults", "exits"), "died")
SAID = {"raises": "told to raise", "hangs": "no answer to a step within 0.5 s", "stops": "no answer", "exits": "code 3"}
SAID |= {"nans": "not finite", "shapes": "has shape (2,)", "aborts": "SIGABRT", "segfaults": "SIGSEGV"}


def of(env, **kwargs):
    """What builds a row of these."""
    return lambda row: make(env, 1, kwargs)


def written(batch):
    return arrays(batch) | {"broken": np.ones(batch.size, bool)}


def play(batch, steps, seed=SEED):
    """All that a batch writes; the last of it in its own arrays, which are never clean."""
    rng, rows = np.random.default_rng(0), []
    out = written(batch)
    batch.reset(seed, out)
    for _ in range(steps):
        if batch.mask:
            action = np.array([rng.choice(np.flatnonzero(row)) for row in out["mask"]])
        else:
            action = rng.integers(0, 2, batch.size)
        out = written(batch)
        batch.step(action, out)
        rows.append(out)
    return rows


@pytest.fixture
def isolated():
    """Makes batches, and sees to it that they leave nothing behind."""
    made = []
    before = psutil.Process().num_fds()

    def build(rows, size=SIZE, limits=MANY):
        made.append(Isolated(rows, size, "Env", limits))
        return made[-1]

    yield build
    children = psutil.Process().children(recursive=True)
    for batch in made:
        batch.close()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    made.clear()
    assert psutil.Process().num_fds() <= before


def in_this_process(env, i, actions, seed=SEED, **kwargs):
    """What row i must be: its own batch of one, played alone."""
    batch = make(env, 1, kwargs)
    out, rows = written(batch), []
    batch.reset(seeds(seed, SIZE)[i], out)
    for action in actions:
        batch.step(index(action, slice(i, i + 1)), out)
        rows.append(tree_map(np.copy, {name: leaf for name, leaf in out.items() if name != "broken"}))
    return rows


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        (FaultyCartPole, {}),
        (Counting, {"lengths": (3, 1, 2), "ends": ("terminated", "truncated", "both")}),
        (Masked, {}),
    ],
)
def test_without_faults_each_row_is_its_own_environment(isolated, env, kwargs):
    batch = isolated(of(env, **kwargs))
    assert isinstance(batch, EnvBatch)
    rng, out, actions, got = np.random.default_rng(0), written(batch), [], []
    batch.reset(SEED, out)
    for _ in range(60):
        legal = out["mask"] if batch.mask else np.ones((SIZE, 2), bool)
        actions.append(np.array([rng.choice(np.flatnonzero(row)) for row in legal]))
        batch.step(actions[-1], out)
        assert not out["broken"].any()
        got.append(tree_map(np.copy, {name: leaf for name, leaf in out.items() if name != "broken"}))
    for i in range(SIZE):
        for one, other in zip(got, in_this_process(env, i, actions, **kwargs), strict=True):
            for (path, mine), (_, alone) in zip(leaves(one), leaves(other), strict=True):
                np.testing.assert_array_equal(mine[i], alone[0], err_msg=str(path))
    assert batch.faults() == []


def test_every_kind_of_leaf_and_batches_that_are_scored(isolated):
    nested = isolated(of(Nested))
    out = written(nested)
    nested.reset(0, out)
    action = {name: leaf for name, leaf in out["obs"].items() if name != "image"} | {"arm": np.zeros((SIZE, 3))}
    nested.step(action, out)
    assert out["reward"].tolist() == [1, 1, 1]
    pong = isolated(of("PongNoFrameskip-v4"), size=2)
    assert (pong.scored, pong.frames_per_step) == (True, 4)
    rows = play(pong, 20)
    assert rows[-1]["obs"].any()
    assert not rows[-1]["score"].any()
    assert nested.faults() + pong.faults() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_costs_its_own_row(isolated, kind):
    """Row 1 fails in its first step after each reset; the others go on as if it were not there."""
    limits = SOON if KIND[kind] == "hung" else MANY
    batch = isolated(lambda row: make(FaultyCartPole, 1, {kind: 1.0} if row == 1 else {}), limits=limits)
    steps = 8
    rows = play(batch, steps)
    rng = np.random.default_rng(0)
    actions = [rng.integers(0, 2, SIZE) for _ in range(steps)]
    for i in (0, 2):
        for got, told in zip(rows, in_this_process(FaultyCartPole, i, actions), strict=True):
            for name, leaf in told.items():
                np.testing.assert_array_equal(got[name][i], leaf[0])
            assert not got["broken"][i]
    broken = [row["broken"][1] for row in rows]
    assert broken[0]
    for t, row in enumerate(rows):
        assert row["truncated"][1] == row["broken"][1]
        assert (row["reward"][1], row["terminated"][1]) == (0, False)
        assert np.isfinite(row["obs"]).all()
        if t and broken[t]:
            np.testing.assert_array_equal(row["obs"][1], rows[t - 1]["obs"][1])
    faults = batch.faults()
    assert {(fault.row, fault.kind) for fault in faults} == {(1, KIND[kind])}
    assert all(SAID[kind] in fault.text for fault in faults)
    if kind in ("raises", "aborts", "segfaults"):
        assert "_misbehave" in faults[0].text
    assert batch.faults() == []


def test_what_is_counted_is_what_was_injected_and_nothing_is_left(isolated, tmp_path):
    """More than 100 faults of all kinds; the processes and descriptors stay those there were."""
    log = tmp_path / "log"
    chances = {"raises": 0.02, "aborts": 0.01, "segfaults": 0.005, "exits": 0.01, "nans": 0.02, "shapes": 0.01}
    rare = {"hangs": 0.0007, "stops": 0.0007}
    limits = Limits(limit_seconds=1.5, reset_seconds=20, max_faults=10_000)
    batch = isolated(of(FaultyCartPole, log=str(log), resets=0.05, **chances, **rare), limits=limits)
    out = written(batch)
    batch.reset(SEED, out)
    (zygote,) = psutil.Process().children()
    before, faults, good, ends = (psutil.Process().num_fds(), zygote.num_fds()), [], 0, 0
    while len(faults) < 110:
        batch.step(np.random.default_rng(len(faults)).integers(0, 2, SIZE), out)
        assert np.isfinite(out["obs"]).all()
        good += int((~out["broken"]).sum())
        ends += int((out["terminated"] & ~out["broken"]).sum())
        faults += batch.faults()
    batch.reset(SEED + 1, out)
    faults += batch.faults()
    assert Counter(fault.kind for fault in faults) == Counter(KIND[line] for line in Path(log).read_text().split())
    assert good > 200
    assert ends > 0
    assert len(zygote.children()) == SIZE
    assert (psutil.Process().num_fds(), zygote.num_fds()) == before


def test_throughput_recovers(isolated, tmp_path):
    """Each row dies once; after that every row of every step is good."""
    mark = tmp_path

    def build(row):
        first = not (mark / str(row)).exists()
        (mark / str(row)).touch()
        return make(FaultyCartPole, 1, {"aborts": 1.0} if first and row else {})

    batch = isolated(build)
    out = written(batch)
    batch.reset(SEED, out)
    for _ in range(10_000):
        batch.step(np.zeros(SIZE, int), out)
        if not out["broken"].any():
            break
    assert not any(row["broken"].any() for row in play(batch, 50))
    assert sorted(fault.row for fault in batch.faults()) == [1, 2]


def test_the_others_do_not_wait_for_a_child_that_is_being_built(isolated, tmp_path):
    """Building takes until a file is there, and that is only after the others have made their steps."""
    slow, ready = tmp_path / "slow", tmp_path / "ready"
    os.mkfifo(ready)

    def build(row):
        if row == 1 and slow.exists():
            ready.read_text()
        return make(FaultyCartPole, 1)

    batch = isolated(build)
    out = written(batch)
    batch.reset(SEED, out)
    slow.touch()
    _kill(1, signal.SIGKILL)
    for _ in range(200):
        batch.step(np.zeros(SIZE, int), out)
        if out["broken"][1]:
            break
    for _ in range(50):
        batch.step(np.zeros(SIZE, int), out)
        np.testing.assert_array_equal(out["broken"], [False, True, False])
    ready.write_text("now")
    while out["broken"][1]:
        batch.step(np.zeros(SIZE, int), out)
    assert [fault.kind for fault in batch.faults()] == ["died"]


def _kill(row, number):
    """Send a signal to the child of a row; the zygote starts them in the order of their rows."""
    (zygote,) = psutil.Process().children()
    sorted(zygote.children(), key=lambda child: child.pid)[row].send_signal(number)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, "died"), (signal.SIGSTOP, "hung")])
def test_a_child_that_is_killed_or_stopped_between_steps(isolated, number, kind):
    batch = isolated(of(FaultyCartPole), limits=SOON)
    out = written(batch)
    batch.reset(SEED, out)
    _kill(2, number)
    found = []
    while not found:
        batch.step(np.zeros(SIZE, int), out)
        found = batch.faults()
    assert [(fault.row, fault.kind) for fault in found] == [(2, kind)]
    np.testing.assert_array_equal(out["broken"], [False, False, True])


def test_faults_in_a_row_that_is_alone(isolated):
    """There is nobody else to go on meanwhile: each step waits for the child that is being built."""
    batch = isolated(of(FaultyCartPole, aborts=1.0), size=1)
    rows = play(batch, 10)
    np.testing.assert_array_equal([row["broken"][0] for row in rows], [True, False] * 5)
    assert len(batch.faults()) == 5


def test_the_end_comes_with_the_traceback_of_the_last_one(isolated):
    batch = isolated(of(FaultyCartPole, raises=1.0), limits=Limits(max_faults=5))
    with pytest.raises(TooManyFaults, match=r"(?s)6 faults .*Traceback .*fake_faults.py.*told to raise"):
        play(batch, 1000)


def test_a_reset_that_always_fails_is_the_end(isolated):
    with pytest.raises(TooManyFaults, match="this reset was told to raise"):
        play(isolated(of(FaultyCartPole, resets=1.0), limits=Limits(max_faults=5)), 1)


def test_a_reset_that_hangs(isolated):
    class Stuck(FaultyCartPole):
        def reset(self, *, seed=None, options=None):
            if seed != 0:  # which is only asked for action masks
                signal.pause()
            return super().reset(seed=seed)

    batch = isolated(of(Stuck), limits=Limits(reset_seconds=1.0, max_faults=2))
    with pytest.raises(TooManyFaults, match=r"hung: no answer to a reset within 1 s"):
        play(batch, 1)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (of(FaultyCartPole, rises=1.0), UserError, r"unexpected keyword argument 'rises'; it can be one of raises"),
        (lambda row: 1 / 0, RuntimeError, r"(?s)Env: an environment cannot be built: Traceback.*division by zero"),
        (lambda row: os.abort(), RuntimeError, r"cannot be built: was killed by SIGABRT"),
        (lambda row: signal.pause(), UserError, r"building an environment takes longer than 2 s"),
    ],
)
def test_what_cannot_be_built_says_why(isolated, build, error, message):
    with pytest.raises(error, match=message):
        isolated(build, limits=Limits(reset_seconds=2.0))


def test_a_reset_begins_everything_again(isolated):
    batch = isolated(of(FaultyCartPole))
    first, again = ([row["obs"] for row in play(batch, 20)] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    other = [row["obs"] for row in play(batch, 20, seed=SEED + 1)]
    assert (np.array(first) != np.array(other)).any()


def test_generators_of_the_process_differ_between_rows(isolated):
    class Global(Counting):
        def step(self, action):
            _, *rest = super().step(action)
            return np.random.random(2).astype(np.float32), *rest

    rows = play(isolated(of(Global)), 2)
    assert len({row.tobytes() for row in rows[0]["obs"]}) == SIZE


def test_closing_reaches_environments_and_may_be_repeated(isolated, tmp_path):
    class Closes(Counting):
        def close(self):
            (tmp_path / str(os.getpid())).touch()

    batch = isolated(of(Closes))
    play(batch, 2)
    count = len(list(tmp_path.iterdir()))
    batch.close()
    assert len(list(tmp_path.iterdir())) == count + SIZE
    batch.close()


def test_closing_does_not_wait_for_what_hangs(isolated):
    class Stuck(Counting):
        def close(self):
            signal.pause()

    def build(row):
        return make(Stuck if row == 1 else Counting, 1)

    batch = isolated(build)
    play(batch, 2)
    batch.close()


@pytest.mark.parametrize("kind", ["aborts", "hangs"])
def test_what_an_environment_has_started_ends_with_it(isolated, tmp_path, kind):
    class Starts(FaultyCartPole):
        def reset(self, *, seed=None, options=None):
            if not (tmp_path / "pid").exists():
                (tmp_path / "pid").write_text(str(subprocess.Popen(["sleep", "60"]).pid))
            return super().reset(seed=seed)

    batch = isolated(of(Starts, **{kind: 1.0}), size=1, limits=SOON)
    (tmp_path / "pid").unlink()
    play(batch, 1)
    started = int((tmp_path / "pid").read_text())
    play(batch, 2)
    batch.close()
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(started).wait(5) or psutil.Process(started)


def test_the_end_of_the_zygote_is_told(isolated):
    batch = isolated(of(Counting))
    play(batch, 1)
    psutil.Process().children()[0].kill()
    with pytest.raises(RuntimeError, match="the process that keeps the environments was killed by SIGKILL"):
        play(batch, 10_000)


PARENT = """
import sys, numpy as np, psutil
from functools import partial
from srl.envs.base import make
from srl.envs.fake import Slow
from srl.envs.isolated import Isolated
batch = Isolated(lambda row: make(partial(Slow, 3600.0), 1), 2, "Env")
out = {"obs": np.zeros((2, 1), np.float32)}
batch.reset(0, out)
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
out |= {name: np.zeros(2) for name in ("reward", "terminated", "truncated")}
batch.step(np.zeros(2, int), out)
"""


def test_no_orphans_when_the_parent_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        children = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(children) == 3
        parent.kill()
        _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


class Malicious:
    def __reduce__(self):
        return os.abort, ()


def test_nothing_that_a_child_says_is_executed():
    fd = os.memfd_create("answer")
    try:
        zygote.write_whole(fd, pickle.dumps(Malicious()))
        with pytest.raises(msgspec.DecodeError):
            zygote.told(fd)
    finally:
        os.close(fd)


FEW = """
import os, resource, sys
from srl.envs.base import isolated
from srl.errors import UserError
count = lambda: len(os.listdir("/proc/self/fd"))
before = count()
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 5, before + 5 + int(sys.argv[1])))
try:
    isolated("srl.envs.fake:Counting", 50).close()
except UserError as error:
    print(error)
print(count() - before)
"""


@pytest.mark.parametrize(("more", "said"), [(20, True), (1000, False)])
def test_too_few_descriptors_are_told_and_none_is_lost(more, said):
    """As many as the hard limit allows are taken, without being asked."""
    ran = subprocess.run([sys.executable, "-c", FEW, str(more)], capture_output=True, text=True, timeout=60)
    *told, left = ran.stdout.splitlines()
    assert (left, len(told), ran.stderr) == ("0", said, "")
    assert all("50 environments in processes of their own needs" in line and "ulimit -n" in line for line in told)


@pytest.mark.parametrize("env", ["Acrobot-v1", "FrozenLake-v1", partial(Counting, lengths=(3, 1, 2))])
def test_they_go_on_from_their_state(isolated, env):
    """In the middle of episodes and after ends, in other processes."""
    batch, again = isolated(of(env)), isolated(of(env))
    play(batch, 100)
    play(again, 3, seed=SEED + 1)
    put_back(again, from_bytes(to_bytes(state_of(batch))))
    for action in np.random.default_rng(1).integers(0, 2, (100, SIZE)):
        outs = [written(batch) for _ in range(2)]
        for one, out in zip((batch, again), outs, strict=True):
            one.step(action, out)
        for (path, one), (_, other) in zip(leaves(outs[0]), leaves(outs[1]), strict=True):
            np.testing.assert_array_equal(one, other, err_msg=str(path))
    assert why_not(batch) is None


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # as an error it crashes the import of Box2D
def test_those_that_cannot_say_how_they_stand_say_why(isolated):
    lunar = isolated(of("LunarLander-v3"), size=1)
    play(lunar, 1)
    assert state_of(lunar) is None
    assert "b2World" in why_not(lunar)
    pong = isolated(of("PongNoFrameskip-v4"), size=1)
    play(pong, 1)
    assert "Atari" in why_not(pong)


def test_a_state_of_others_is_refused(isolated):
    batch, other = isolated(of("Acrobot-v1"), size=1), isolated(of("CartPole-v1"), size=1)
    play(batch, 1)
    play(other, 1)
    with pytest.raises(UserError, match="does not fit"):
        put_back(other, state_of(batch))


@pytest.mark.parametrize("kind", ["dies", "hangs"])
def test_one_that_fails_while_it_says_how_it_stands(isolated, kind):
    """There is no state then; the row is broken in the next step, and the others go on."""

    class Fails(Counting):
        def get_state(self):
            os._exit(3) if kind == "dies" else signal.pause()

        def set_state(self, state): ...

    batch = isolated(lambda row: make(Fails if row == 1 else Counting, 1), limits=Limits(reset_seconds=0.5))
    play(batch, 3)
    out = written(batch)
    assert state_of(batch) is None
    batch.step(np.zeros(SIZE, int), out)
    np.testing.assert_array_equal(out["broken"], [False, True, False])
    np.testing.assert_array_equal(out["truncated"], [False, True, False])
    assert [(fault.row, fault.kind) for fault in batch.faults()] == [(1, "died" if kind == "dies" else "hung")]


def test_one_that_has_just_failed_has_no_state(isolated):
    batch = isolated(of(FaultyCartPole, aborts=1.0), size=1)
    play(batch, 1)
    assert state_of(batch) is None
    assert "just failed" in why_not(batch)


def test_they_are_stepped_at_the_same_time(isolated):
    """Eight steps of 50 ms take much less than eight times as long; a sleeping child needs no core."""
    batch = isolated(of(partial(Slow, 0.05)), size=8)
    start = time.perf_counter()
    play(batch, 10)
    assert time.perf_counter() - start < 0.5 * 8 * 10 * 0.05
