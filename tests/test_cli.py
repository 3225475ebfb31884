"""The command line as a person types it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from srl import cli
from srl import runs as runs_module

SHORT = ["--steps", "2000", "--rollout", "32", "--envs", "4", "--stop-at-reward", "1e9"]


def srl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command, run to its end."""
    command = [sys.executable, "-W", "error", "-m", "srl.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one short run in it, named one."""
    folder = tmp_path_factory.mktemp("runs")
    done = srl(folder, "train", "ppo", *SHORT, "--name", "one", "--eval-every", "1000")
    assert done.returncode == 0, done.stderr
    assert "next: srl eval runs/one" in done.stdout
    return folder


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian", "ppo"], "'train'"),
        (["train", "pppo"], "'ppo'"),
        (["train"], "needs a recipe"),
        (["train", "ppo", "--sede", "3"], "'--seed'"),
        (["train", "ppo", "--seed", "x"], "--seed must be a whole number"),
        (["train", "ppo", "--act", "smh"], "'shm'"),
        (["train", "ppo", "--env", "CartPoll-v1"], "'CartPole-v1'"),
        (["train", "ppo", "--env", "nowhere:Env"], "no module 'nowhere'"),
        (["train", "ppo", "--set", "trainers.main.algorithm.gama=0.9"], "'gamma'"),
        (["train", "ppo", "--set", "streams.man.rollout=3"], "'main'"),
        (["train", "ppo", "--set", "trainers.main.algorithm.gamma=high"], "must be float"),
        (["train", "ppo", "--envs", "7", "--actors", "2"], "multiple of actors"),
        (["train", "ppo", "--launcher", "locl"], "local"),
        (["train", "nowhere:recipe"], "no module 'nowhere'"),
        (["eval", "nothing"], "no run 'nothing'"),
        (["show", "ppo", "--gama", "1"], "'--gamma'"),
    ],
)
def test_a_mistake_gets_one_clear_line_at_once(tmp_path: Path, words: list[str], hint: str) -> None:
    before = time.monotonic()
    done = srl(tmp_path, *words)
    assert time.monotonic() - before < 2
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert hint in done.stderr


def test_a_run_name_that_exists_is_refused(folder: Path) -> None:
    done = srl(folder, "train", "ppo", *SHORT, "--name", "one")
    assert done.returncode == 2
    assert "'one' exists" in done.stderr


def test_list_names_recipes_and_runs(folder: Path) -> None:
    said = srl(folder, "list").stdout
    assert "Proximal policy optimisation" in said
    assert any(line.split()[:2] == ["one", "completed"] for line in said.splitlines())


def test_eval_and_play(folder: Path) -> None:
    assert "over 3 episodes" in srl(folder, "eval", "one", "--episodes", "3").stdout
    assert "over 2 episodes" in srl(folder, "eval", "latest", "--episodes", "2", "--sample").stdout
    done = srl(folder, "play", "one", "--video", "videos/one.mp4")
    assert done.returncode == 0, done.stderr
    assert (folder / "videos" / "one.mp4").read_bytes()[4:8] == b"ftyp"


def test_the_run_folder_holds_what_it_promises(folder: Path) -> None:
    names = {path.name.partition(".")[0] for path in (folder / "runs" / "one").iterdir()}
    assert names == {"experiment", "command", "system", "metrics", "summary", "events", "logs", "checkpoints", "store"}
    assert {path.name for path in (folder / "runs" / "one" / "checkpoints" / "main").iterdir()} >= {"latest", "best"}


def test_quiet_says_nothing(tmp_path: Path) -> None:
    done = srl(tmp_path, "train", "ppo", *SHORT, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_show_draws_without_torch_and_starts_nothing(tmp_path: Path) -> None:
    program = "import sys; from srl.cli import main; code = main(['show', 'ppo', '--actors', '2', '--act', 'shm'])"
    check = "assert code == 0 and 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; {check}"], capture_output=True, text=True, cwd=tmp_path, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert "2 x 1 x 16 environments CartPole-v1" in done.stdout
    assert "learning_rate: 0.0025" in done.stdout
    assert not (tmp_path / "runs").exists()


def test_doctor_finds_what_is_installed(tmp_path: Path) -> None:
    said = srl(tmp_path, "doctor").stdout
    assert "ok  torch" in said
    assert "shared memory" in said


def test_help_explains_the_parameters(tmp_path: Path) -> None:
    said = srl(tmp_path, "train", "ppo", "--help").stdout
    assert "--max-lag" in said
    assert "everything random is drawn from it" in said
    assert "train a recipe" in srl(tmp_path).stdout


def test_settings_by_path_reach_the_run(tmp_path: Path) -> None:
    done = srl(tmp_path, "train", "ppo", *SHORT, "--set", "trainers.main.algorithm.clip=0.31", "--name", "x")
    assert done.returncode == 0, done.stderr
    assert "clip: 0.31" in (tmp_path / "runs" / "x" / "experiment.yaml").read_text()


def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        target = "/proc/none"
    else:
        tmp_path.chmod(0o500)
        target = str(tmp_path / "none")
    done = srl(Path("/"), "train", "ppo", *SHORT, "--runs", target)
    assert done.returncode == 2
    assert "cannot make the run folder" in done.stderr


def test_versions_tags_and_weights_of_another_run(tmp_path, capsys):
    runs = ["--runs", str(tmp_path)]
    train = ["train", "ppo", *SHORT, "--actors", "1", *runs, "--quiet"]
    assert cli.main([*train, "--name", "first", "--set", "checkpoint_every=500", "--set", "keep=2"]) == 0
    assert cli.main(["versions", "first", *runs]) == 0
    shown = capsys.readouterr().out
    assert "first, policy main" in shown
    assert "2,0" in shown
    assert cli.main(["tag", "first", "latest", "good", *runs]) == 0
    assert "good is version" in capsys.readouterr().out
    assert cli.main(["versions", "first", *runs]) == 0
    assert "good" in capsys.readouterr().out
    assert cli.main(["train", "ppo", *SHORT, "--actors", "1", *runs, "--name", "second", "--init", "first:good"]) == 0
    assert "begins with 12 of 12 weights" in capsys.readouterr().err
    part = ["--init", "first", "--init-part", "actor.encoder"]
    assert cli.main(["train", "ppo", *SHORT, "--actors", "1", *runs, "--name", "third", *part]) == 0
    assert "begins with 4 of 4 weights" in capsys.readouterr().err
    assert cli.main([*train, "--name", "fourth", "--init", "first:goot"]) == 2
    assert "did you mean 'good'" in capsys.readouterr().err


def test_a_run_goes_on_by_the_command_that_began_it(tmp_path, capsys):
    words = ["train", "ppo", *SHORT, "--actors", "1", "--runs", str(tmp_path)]
    assert cli.main([*words, "--name", "one", "--quiet"]) == 0
    assert cli.main([*words, "--name", "one", "--quiet"]) == 2
    assert f"srl resume {tmp_path / 'one'}" in capsys.readouterr().err
    more = [*words, "--steps", "4000", "--resume", "one", "--quiet"]
    assert cli.main(more) == 0
    assert runs_module.find(tmp_path, "one").summary()["steps"] >= 4000
    assert cli.main([*more, "--gamma", "0.5"]) == 2
    assert "trainers.main.algorithm.gamma = 0.99, and you ask for 0.5" in capsys.readouterr().err
