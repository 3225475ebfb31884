"""Every way a run can end: in time, with the cause named, and with nothing left behind."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests import runs_of

IN_TIME = 15.0


@pytest.fixture
def shm_stays():
    before = runs_of.shared_memory()
    yield
    assert runs_of.shared_memory() <= before


def ended(run: subprocess.Popen[str], processes: list[psutil.Process]) -> tuple[int, str]:
    _, errors = run.communicate(timeout=IN_TIME)
    runs_of.assert_gone(processes)
    return run.returncode, errors


def summary(folder: Path) -> dict:
    return json.loads((folder / "run" / "summary.json").read_text())


@pytest.mark.parametrize("worker", ["trainer-main-0", "actor-main-0", "policy-main-0"])
@pytest.mark.usefixtures("shm_stays")
def test_a_killed_worker_ends_the_run_with_its_name(tmp_path: Path, worker: str) -> None:
    run = runs_of.start(tmp_path, "ppo", "--act", "shm", *runs_of.FOREVER, "--set", "restarts.limit=0")
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    os.kill(runs_of.worker_pids(tmp_path, run)[worker], signal.SIGKILL)
    code, errors = ended(run, processes)
    assert code == 3
    assert f"{worker} was killed by SIGKILL" in errors.splitlines()[-1]
    assert summary(tmp_path)["status"] == "failed"


@pytest.mark.usefixtures("shm_stays")
def test_killing_control_takes_every_process_along(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", "--act", "shm", *runs_of.FOREVER)
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    assert len(processes) == 5
    run.kill()
    code, _ = ended(run, processes)
    assert code == -signal.SIGKILL


def test_killing_the_nursery_ends_the_run(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", *runs_of.FOREVER)
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    psutil.Process(run.pid).children()[0].kill()
    code, errors = ended(run, processes)
    assert code == 3
    assert "killed by SIGKILL" in errors.splitlines()[-1]


@pytest.mark.parametrize("launcher", ["local", "serial"])
def test_ctrl_c_finishes_the_run_and_it_goes_on_later(tmp_path: Path, launcher: str) -> None:
    run = runs_of.start(tmp_path, "ppo", *runs_of.FOREVER, "--launcher", launcher)
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    run.send_signal(signal.SIGINT)
    code, errors = ended(run, processes)
    assert (code, "Traceback" in errors) == (130, False)
    steps = summary(tmp_path)["steps"]
    assert summary(tmp_path)["status"] == "interrupted"
    assert steps > 0
    resumed = subprocess.run(
        [*_srl(), "resume", str(tmp_path / "run"), "--steps", str(steps + 20_000), "--quiet"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert summary(tmp_path)["steps"] >= steps + 20_000


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", *runs_of.FOREVER)
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    os.kill(runs_of.worker_pids(tmp_path, run)["trainer-main-0"], signal.SIGSTOP)
    run.send_signal(signal.SIGINT)
    time.sleep(0.5)
    run.send_signal(signal.SIGINT)
    before = time.monotonic()
    code, _ = ended(run, processes)
    assert code == 130
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("launcher", ["local", "serial"])
def test_an_environment_that_raises_shows_its_own_traceback(tmp_path: Path, launcher: str) -> None:
    run = runs_of.start(tmp_path, "ppo", "--env", "srl.envs.fake:Raises", "--envs", "4", "--launcher", launcher)
    code, errors = ended(run, [])
    assert code != 0
    assert "this environment was told to raise" in "\n".join(errors.splitlines()[-3:])
    assert "in step" in errors
    assert summary(tmp_path)["status"] == "failed"


def test_a_model_that_returns_nan_is_named(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", "--learning-rate", "1e30", *runs_of.FOREVER)
    code, errors = ended(run, [])
    assert code == 3
    assert "FloatingPointError" in errors.splitlines()[-1]


def test_an_environment_that_aborts_the_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "aborting.py").write_text(
        "import os\n"
        "from srl.envs.fake import ConstantReward\n"
        "class Aborts(ConstantReward):\n"
        "    def step(self, action):\n"
        "        os.abort()\n"
    )
    run = runs_of.start(tmp_path, "ppo", "--env", "aborting:Aborts", "--envs", "4")
    code, errors = ended(run, [])
    assert code == 3
    assert "actor-main-0 was killed by SIGABRT" in errors


def test_an_environment_that_cannot_be_built_fails_before_a_run_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def make():\n    raise ValueError('no such level')\n")
    run = runs_of.start(tmp_path, "ppo", "--env", "broken:make")
    code, errors = ended(run, [])
    assert code == 3
    assert "no such level" in errors.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_a_worker_that_shows_no_sign_of_life_ends_the_run(tmp_path: Path) -> None:
    run = runs_of.start(tmp_path, "ppo", *runs_of.FOREVER, "--set", "stall_seconds=2", "--set", "restarts.limit=0")
    runs_of.wait_until_training(tmp_path, run)
    processes = runs_of.family(run)
    os.kill(runs_of.worker_pids(tmp_path, run)["actor-main-0"], signal.SIGSTOP)
    code, errors = ended(run, processes)
    assert code == 3
    assert "actor-main-0 has shown no sign of life" in errors.splitlines()[-1]


def _srl() -> list[str]:
    import sys

    return [sys.executable, "-m", "srl.cli"]
