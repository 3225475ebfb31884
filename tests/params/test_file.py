"""Checkpoints appear whole or not at all, are kept as long as they are named, and loading one executes nothing."""

import hashlib
import os
import pickle
import signal
import struct
import time

import pytest
import torch

from srl.errors import UserError
from srl.params import checksum
from srl.params import file as checkpoints
from srl.tree import Spec

WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(7), "empty": torch.zeros(0)}
TRAINING = {"optimizer": {"step": torch.tensor(3.0)}, "counters": [1, 2.5, None, "x"]}


def save(folder, steps, link="latest", training=TRAINING, weights=WEIGHTS):
    return checkpoints.save(folder, weights, {"steps": steps, "version": steps // 10}, training, link)


def names(folder):
    return sorted(path.name for path in folder.glob("step_*"))


def test_what_is_saved_is_loaded(tmp_path):
    path = save(tmp_path / "checkpoints", 120)
    loaded = checkpoints.load(tmp_path / "checkpoints", "latest")
    assert loaded.path == path.resolve()
    assert (loaded.meta["steps"], loaded.meta["version"]) == (120, 12)
    assert loaded.training()["counters"] == TRAINING["counters"]
    for name, tensor in loaded.weights().items():
        assert tensor.dtype == WEIGHTS[name].dtype
        torch.testing.assert_close(tensor, WEIGHTS[name], rtol=0, atol=0)


def test_each_link_points_to_the_last_one_saved_for_it(tmp_path):
    for steps in (10, 20):
        save(tmp_path, steps)
    save(tmp_path, 10, "best", training=None)
    assert checkpoints.load(tmp_path, "latest").meta["steps"] == 20
    assert checkpoints.load(tmp_path, "best").meta["steps"] == 10
    assert checkpoints.load(tmp_path, names(tmp_path)[0]).meta["steps"] == 10


def test_saving_the_best_leaves_the_training_state_of_the_same_step_alone(tmp_path):
    save(tmp_path, 10)
    save(tmp_path, 10, "best", training=None)
    assert checkpoints.load(tmp_path, "latest").training()["counters"] == TRAINING["counters"]


def test_weights_that_share_memory_or_are_strided_are_saved_as_they_are(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    weights = {"whole": base, "turned": base.T, "column": base[:, 1]}
    save(tmp_path, 1, weights=weights)
    loaded = checkpoints.load(tmp_path, "latest").weights()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_the_digest_depends_on_names_and_numbers_alone():
    digest = checkpoints.sha256_of(WEIGHTS)
    assert digest == checkpoints.sha256_of(dict(reversed(WEIGHTS.items())))
    strided = {**WEIGHTS, "b": WEIGHTS["b"].T.contiguous().T}
    assert digest == checkpoints.sha256_of(strided)
    assert digest != checkpoints.sha256_of({**WEIGHTS, "a": torch.tensor(8)})
    assert digest != checkpoints.sha256_of({"c" if name == "a" else name: w for name, w in WEIGHTS.items()})


def test_the_digest_is_the_same_everywhere():
    weights = {"w": torch.tensor([1.0, -2.0]), "n": torch.tensor([True])}
    expected = hashlib.sha256(b"n" + b"\x01" + b"w" + struct.pack("<2f", 1, -2)).hexdigest()
    assert checkpoints.sha256_of(weights) == expected


def child(work):
    """Do this over and over in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    return pid


def ended(pid):
    """Kill a child and say whether it lived until then."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("same_step", [False, True])
def test_whoever_is_killed_while_saving_leaves_a_checkpoint_that_loads(tmp_path, same_step):
    save(tmp_path, 0)
    for attempt in range(25):
        steps = iter(range(attempt * 1000 + 1, 10**9))
        pid = child(lambda steps=steps: save(tmp_path, 0 if same_step else next(steps)))
        time.sleep(0.01 + 0.0017 * attempt)
        assert ended(pid)
        loaded = checkpoints.load(tmp_path, "latest")
        assert set(loaded.weights()) == set(WEIGHTS)
        assert loaded.training()["counters"] == TRAINING["counters"]


@pytest.mark.parametrize("same_step", [False, True])
def test_a_reader_beside_a_writer_always_finds_the_latest_whole(tmp_path, same_step):
    save(tmp_path, 0)
    steps = iter(range(1, 10**9))
    pid = child(lambda: save(tmp_path, 0 if same_step else next(steps)))
    try:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            loaded = checkpoints.load(tmp_path, "latest")
            assert set(loaded.weights()) == set(WEIGHTS)
    finally:
        assert ended(pid)


def test_two_who_save_and_prune_at_once_do_not_disturb_each_other(tmp_path):
    def work(link, training):
        steps = iter(range(10**9))

        def once():
            save(tmp_path, next(steps), link, training)
            checkpoints.prune(tmp_path, link, 2)

        return once

    pids = [child(work("latest", TRAINING)), child(work("best", None))]
    time.sleep(1.5)
    lived = [ended(pid) for pid in pids]
    assert all(lived), "one of them failed"
    for link in ("latest", "best"):
        assert set(checkpoints.load(tmp_path, link).weights()) == set(WEIGHTS)


def test_pruning_keeps_the_newest_and_whatever_a_link_names(tmp_path):
    save(tmp_path, 10, "best")
    for steps in (20, 30, 40, 50):
        save(tmp_path, steps)
    checkpoints.prune(tmp_path, "latest", 2)
    assert names(tmp_path) == [f"step_{steps:012d}" for steps in (10, 40, 50)]
    for link in ("latest", "best"):
        checkpoints.load(tmp_path, link).weights()


def test_pruning_keeps_a_latest_that_is_not_the_newest_by_name(tmp_path):
    for steps in (30, 40, 20):
        save(tmp_path, steps)
    checkpoints.prune(tmp_path, "latest", 1)
    assert checkpoints.load(tmp_path, "latest").meta["steps"] == 20


def test_each_link_prunes_its_own(tmp_path):
    for steps in (10, 20, 30):
        save(tmp_path, steps)
        save(tmp_path, steps, "best", training=None)
        checkpoints.prune(tmp_path, "best", 1)
    assert names(tmp_path) == [*(f"step_{steps:012d}" for steps in (10, 20, 30)), f"step_{30:012d}_best"]
    checkpoints.prune(tmp_path, "latest", 1)
    assert names(tmp_path) == [f"step_{30:012d}", f"step_{30:012d}_best"]


def test_the_first_checkpoint_after_every_so_many_steps_stays(tmp_path):
    for steps in range(30, 300, 40):
        save(tmp_path, steps)
        checkpoints.prune(tmp_path, "latest", 1, every=100)
    assert names(tmp_path) == [f"step_{steps:012d}" for steps in (110, 230, 270)]


def test_what_may_not_go_stays(tmp_path):
    for steps in (10, 20, 30):
        save(tmp_path, steps)
    checkpoints.prune(tmp_path, "latest", 1, may_go=lambda name: not name.endswith("10"))
    assert names(tmp_path) == [f"step_{steps:012d}" for steps in (10, 30)]


def test_a_second_save_of_one_step_is_the_newer(tmp_path):
    for _ in range(12):
        save(tmp_path, 10)
    checkpoints.prune(tmp_path, "latest", 2)
    assert names(tmp_path) == [f"step_{10:012d}.10", f"step_{10:012d}.11"]


def test_pruning_an_empty_folder_does_nothing(tmp_path):
    checkpoints.prune(tmp_path, "latest", 1)
    assert names(tmp_path) == []


def test_a_checkpoint_that_is_not_there_is_named_with_those_that_are(tmp_path):
    save(tmp_path, 10)
    with pytest.raises(UserError, match=r"'best'.*latest, step_000000000010"):
        checkpoints.load(tmp_path, "best")
    with pytest.raises(UserError, match="none"):
        checkpoints.load(tmp_path / "nowhere", "latest")


@pytest.mark.parametrize(("text", "said"), [("{", "damaged"), ("[]", "damaged"), ('{"format": 99}', "99")])
def test_a_checkpoint_that_cannot_be_read_is_refused_in_one_line(tmp_path, text, said):
    path = save(tmp_path, 10)
    (path / "meta.json").write_text(text)
    with pytest.raises(UserError, match=said):
        checkpoints.load(tmp_path, "latest")


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def sealed(path):
    """Let whoever changed the files of a checkpoint write matching digests too."""
    files = {name: (path / name).read_bytes() for name in ("meta.json", "weights.safetensors", "training.pt")}
    (path / "SHA256SUMS").write_bytes(checksum.sums_of(files))


def test_loading_executes_nothing(tmp_path):
    path, proof = save(tmp_path, 10), tmp_path / "executed"
    torch.save({"learner": Malicious(proof)}, path / "training.pt")
    sealed(path)
    with pytest.raises(UserError, match=r"cannot read .*training.pt"):
        checkpoints.load(tmp_path, "latest").training()
    (path / "training.pt").write_bytes(pickle.dumps(Malicious(proof), protocol=2))
    sealed(path)
    with pytest.raises(UserError, match=r"cannot read .*training.pt"):
        checkpoints.load(tmp_path, "latest").training()
    (path / "weights.safetensors").write_bytes(pickle.dumps(Malicious(proof), protocol=2))
    sealed(path)
    with pytest.raises(UserError, match=r"cannot read .*weights.safetensors"):
        checkpoints.load(tmp_path, "latest").weights()
    assert not proof.exists()


def test_parameters_are_counted():
    spec = {"w": Spec((3, 4), "float32"), "b": Spec((), "float32"), "none": Spec((0,), "float32")}
    assert checkpoints.count_parameters(spec) == 13
