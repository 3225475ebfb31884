"""A checkpoint that is not what was written is named, and another that is intact is found."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from srl.errors import UserError
from srl.params import checksum
from srl.params import file as checkpoints

FILES = ("meta.json", "weights.safetensors", "training.pt", "SHA256SUMS")


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of the steps 10, 20 and 30; the best is of step 40."""
    for steps in (10, 20, 30):
        save(tmp_path, steps)
    save(tmp_path, 40, "best", None)
    return tmp_path


def save(folder, steps, link="latest", training=()):
    weights = {"w": torch.full((100,), float(steps))}
    training = None if training is None else {"steps": steps}
    return checkpoints.save(folder, weights, {"steps": steps, "version": steps // 10}, training, link)


def flipped(path, at):
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1
    path.write_bytes(data)


def steps(folder, which="latest"):
    loaded = checkpoints.load(folder, which)
    assert loaded.weights()["w"][0] == loaded.meta["steps"]
    return loaded.meta["steps"]


def test_what_was_written_is_intact(folder):
    for path in checksum.in_order(folder):
        assert checksum.damage(path) is None
    assert steps(folder) == 30
    assert steps(folder, "best") == 40
    assert checksum.newest_intact(folder).name == "step_000000000030"


def test_anybody_can_check_the_digests(folder):
    path = (folder / "latest").resolve()
    said = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=path, capture_output=True, text=True, check=True)
    assert said.stdout.count(": OK") == 3


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["flipped", "cut", "empty", "removed", "swapped", "folder"])
def test_any_damage_to_the_latest_is_said_and_the_newest_intact_taken(folder, capsys, name, how):
    path = folder / "step_000000000030" / name
    data = path.read_bytes()
    path.unlink()
    if how == "flipped":
        path.write_bytes(data)
        flipped(path, len(data) // 2)
    elif how in ("cut", "empty"):
        path.write_bytes(data[: len(data) // 2 if how == "cut" else 0])
    elif how == "swapped":
        shutil.copy(folder / "step_000000000010" / name, path)
    elif how == "folder":
        path.mkdir()
    assert steps(folder) == 20
    said = capsys.readouterr().err
    assert "step_000000000030" in said
    assert "damaged" in said
    assert "taking step_000000000020 instead" in said
    with pytest.raises(UserError, match=r"step_000000000030.*damaged.*intact is step_000000000020"):
        checkpoints.load(folder, "step_000000000030")


def test_every_bit_of_every_file_counts(folder):
    path = (folder / "latest").resolve()
    for name in FILES:
        whole = (path / name).read_bytes()
        for at in range(0, len(whole), max(1, len(whole) // 40)):
            flipped(path / name, at)
            assert checksum.damage(path), f"byte {at} of {name}"
            (path / name).write_bytes(whole)
    assert checksum.damage(path) is None


def test_a_damaged_best_is_named_with_what_is_intact(folder):
    flipped(folder / "best" / "weights.safetensors", 500)
    with pytest.raises(UserError, match=r"step_000000000040_best/weights.safetensors.*intact is step_000000000030"):
        checkpoints.load(folder, "best")


def test_a_link_that_is_gone_or_leads_nowhere_is_replaced_by_the_newest_intact(folder, capsys):
    (folder / "latest").unlink()
    assert steps(folder) == 30
    (folder / "latest").symlink_to("step_000000000099")
    assert steps(folder) == 30
    assert "no checkpoint 'latest'" in capsys.readouterr().err


def test_where_nothing_is_intact_the_damage_is_said(folder):
    for path in folder.glob("step_*"):
        flipped(path / "weights.safetensors", 500)
    with pytest.raises(UserError, match=r"step_000000000030/weights.safetensors is damaged"):
        checkpoints.load(folder, "latest")
    assert checksum.newest_intact(folder) is None


def test_the_best_is_nothing_to_go_on_from(tmp_path):
    save(tmp_path, 40, "best", None)
    assert checksum.newest_intact(tmp_path) is None


def as_format_1(path):
    """Make a checkpoint what the first version of srl wrote."""
    meta = json.loads((path / "meta.json").read_bytes())
    (path / "meta.json").write_text(json.dumps({**meta, "format": 1}))
    (path / "SHA256SUMS").unlink()


def test_a_checkpoint_of_the_first_format_loads(folder):
    as_format_1((folder / "latest").resolve())
    assert steps(folder) == 30
    assert checkpoints.load(folder, "latest").training() == {"steps": 30}


def test_a_torn_checkpoint_of_the_first_format_is_named(folder):
    path = (folder / "latest").resolve()
    as_format_1(path)
    (path / "weights.safetensors").write_bytes((path / "weights.safetensors").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"cannot read .*weights.safetensors"):
        checkpoints.load(folder, "latest").weights()
    (path / "weights.safetensors").unlink()
    assert steps(folder) == 20


@pytest.mark.parametrize("version", [0, 3, "2", None, True, [2]])
def test_another_format_is_refused_with_what_can_be_read(folder, version):
    for path in folder.glob("step_*"):
        (path / "meta.json").write_text(json.dumps({"format": version, "steps": 1, "version": 1}))
    with pytest.raises(UserError, match=r"reads up to 2|damaged"):
        checkpoints.load(folder, "latest")


def test_checking_needs_no_torch():
    code = "import sys; import srl.params.checksum; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
