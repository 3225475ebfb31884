"""Run folders: never shared, always found again, and honest about how a run ended."""

import json
import os
import subprocess
import sys

import pytest

from srl import runs
from srl.errors import UserError
from srl.recipes.ppo import ppo
from srl.settings import trusting


def create(folder, name=None, env="CartPole-v1", experiment=None):
    return runs.create(folder, experiment or ppo(), env, name, ["srl", "train", "ppo", "--env", "a b"])


def test_a_new_run_says_what_will_run(tmp_path):
    run = create(tmp_path / "deep" / "runs", experiment=ppo(seed=7, memory="lstm"))
    assert run.name.startswith("ppo__CartPole-v1__7__")
    assert run.logs.is_dir()
    assert run.checkpoints("main").parent.parent == run.path
    assert run.experiment(trusting()) == ppo(seed=7, memory="lstm")
    assert (run.path / "command.txt").read_text() == "srl train ppo --env 'a b'\n"
    assert json.loads((run.path / "system.json").read_text())["packages"]["torch"]


def test_two_runs_of_the_same_second_get_folders_of_their_own(tmp_path):
    made = [create(tmp_path) for _ in range(5)]
    assert len({run.path for run in made}) == 5
    assert {run.name for run in runs.listing(tmp_path)} == {run.name for run in made}


@pytest.mark.parametrize("env", ["module:Id-v0", "ALE/Pong-v5", "a/../../b"])
def test_any_environment_gives_one_folder_in_the_folder_of_runs(tmp_path, env):
    assert create(tmp_path, env=env).path.parent == tmp_path


def test_a_name_that_exists_is_refused_and_the_run_that_has_it_left_alone(tmp_path):
    run = create(tmp_path, "mine")
    run.write_summary({"status": "completed"})
    with pytest.raises(UserError, match=r"'mine' exists.*--name"):
        create(tmp_path, "mine")
    assert run.summary() == {"status": "completed"}


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot make the run folder"):
        create(tmp_path / "file" / "runs")
    with pytest.raises(UserError, match="cannot make the run folder"):
        create(tmp_path / "file", "mine")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_said_in_one_line(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(UserError, match=r"cannot make the run folder.*Permission"):
        create(tmp_path)


def test_a_file_system_that_cannot_be_written_is_said_in_one_line():
    with pytest.raises(UserError, match="cannot make the run folder"):
        create(runs.Path("/proc/srl-runs"))


def test_a_run_is_found_by_path_by_name_and_as_the_latest(tmp_path):
    old, new = create(tmp_path, "old"), create(tmp_path, "new")
    os.utime(new.path / "experiment.yaml", (1, 1))
    assert runs.find(tmp_path, str(new.path)).path == new.path
    assert runs.find(tmp_path, "new").path == new.path
    assert runs.find(tmp_path, "latest").path == old.path
    assert [run.name for run in runs.listing(tmp_path)] == ["new", "old"]


def test_a_run_that_is_not_there_is_named_with_the_nearest(tmp_path):
    create(tmp_path, "pendulum")
    with pytest.raises(UserError, match=r"'pendulun'.*did you mean 'pendulum'"):
        runs.find(tmp_path, "pendulun")
    with pytest.raises(UserError, match="latest"):
        runs.find(tmp_path / "nowhere", "latest")
    assert runs.listing(tmp_path / "nowhere") == []


def test_a_run_that_died_without_a_word_is_lost(tmp_path):
    run = create(tmp_path)
    assert run.summary()["status"] == "lost"
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    run.write_summary({"status": "running", "pid": child.pid})
    assert run.summary()["status"] == "lost"
    run.write_summary({"status": "running"})
    assert run.summary()["status"] == "lost"


def test_a_run_whose_process_lives_is_running(tmp_path):
    run = create(tmp_path)
    for pid in (os.getpid(), 1):
        run.write_summary({"status": "running", "pid": pid})
        assert run.summary()["status"] == "running"


def test_a_damaged_summary_counts_as_lost(tmp_path):
    run = create(tmp_path)
    (run.path / "summary.json").write_text('{"status": "comp')
    assert run.summary() == {"status": "lost"}


def test_a_summary_is_replaced_in_one_step(tmp_path):
    run = create(tmp_path)
    for steps in range(3):
        run.write_summary({"status": "completed", "steps": steps})
    assert run.summary()["steps"] == 2
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]
