"""The same recipe on a Ray cluster: on one host, over several, while hosts fail; and what cannot be had is said."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from srl import control
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from tests.cluster import Cluster
from tests.hosts import Hosts

pytestmark = pytest.mark.timeout(240)
SMALL = {"envs": 8, "rollout": 16, "compile": False}


def summary_of(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())


def steps_of(run: Path) -> int:
    """Steps of the newest row of metrics."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return json.loads(lines[-1])["time/total_timesteps"] if lines else 0


def srl(cluster: Cluster, runs: Path, *words: str) -> subprocess.Popen:
    """A command of srl on host 0; warnings are errors to it."""
    argv = [sys.executable, "-W", "error", "-m", "srl.cli", *words, "--runs", str(runs)]
    if words[0] != "submit":
        argv += ["--launcher", "ray", "--address", cluster.address]
    return cluster.run(0, argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=runs)


def wait_for(condition, seconds: float, process: subprocess.Popen | None = None) -> float:
    """Until something is so; how long it took."""
    began = time.monotonic()
    while not condition():
        if process is not None and process.poll() is not None:
            pytest.fail(f"the run ended with {process.returncode}:\n{process.stdout.read()}")
        assert time.monotonic() < began + seconds, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture
def weights_here(tmp_path: Path):
    """The digest of the weights that a command gives on this machine."""

    def train(experiment) -> str:
        return control.train(experiment, runs_folder=tmp_path, name="here", quiet=True).summary["weights_sha256"]

    return train


def test_one_recipe_on_one_host_and_over_four_gives_the_same_weights(tmp_path: Path, weights_here) -> None:
    words = ["ppo", "--actors", "4", "--envs", "16", "--rollout", "32", "--steps", "12000", "--no-compile"]
    with Hosts(4) as hosts, Cluster(hosts, cpus=2) as cluster:
        for name, cpus in (("one", []), ("act", ["--act", "shm", "--policy-workers", "2"])):
            run = srl(cluster, tmp_path, "train", *words, *cpus, "--name", name)
            said, _ = run.communicate(timeout=120)
            assert run.returncode == 0, said
    experiment = ppo("CartPole-v1", actors=4, envs=16, rollout=32, steps=12_000, compile=False)
    assert summary_of(tmp_path / "one")["weights_sha256"] == weights_here(experiment)
    assert summary_of(tmp_path / "act")["weights_sha256"] == summary_of(tmp_path / "one")["weights_sha256"]
    assert {log.name for log in (tmp_path / "one" / "logs").iterdir()} >= {f"actor-main-{at}.log" for at in range(4)}


def test_a_cluster_of_its_own_is_started_where_there_is_none_and_is_gone_afterwards(
    tmp_path: Path, weights_here
) -> None:
    words = ["train", "ppo", "--launcher", "ray", "--actors", "2", "--steps", "3000", "--no-compile", "--name", "ray"]
    code = "import sys; from srl.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--runs", str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    experiment = ppo("CartPole-v1", actors=2, steps=3000, compile=False)
    assert summary_of(tmp_path / "ray")["weights_sha256"] == weights_here(experiment)


@pytest.mark.clusters
def test_hosts_fail_come_back_and_are_cut_off_while_the_run_goes_on(tmp_path: Path) -> None:
    words = ["impala", "--actors", "4", "--envs", "16", "--max-lag", "2", "--steps", "100000000", "--no-compile"]
    with Hosts(4) as hosts, Cluster(hosts, cpus=2) as cluster:
        run = srl(
            cluster, tmp_path, "train", *words, "--set", "log_every=2000", "--stop-at-reward", "1000", "--name", "r"
        )
        folder = tmp_path / "r"
        wait_for(lambda: steps_of(folder) > 10_000, 60, run)
        for fails in (3, 2):
            cluster.kill_host(fails)
            at = steps_of(folder)
            # What is under way when the host dies may still be counted; more than that is not.
            wait_for(lambda at=at: steps_of(folder) > at + 20_000, 30, run)
        cluster.start_host(2)
        cluster.start_host(3)
        wait_for(lambda: "lives again" in " ".join(said_of(folder, run)), 60, run)
        hosts.cut(3)
        at = steps_of(folder)
        wait_for(lambda: steps_of(folder) > at + 20_000, 30, run)
        hosts.mend(3)
        at = steps_of(folder)
        wait_for(lambda: steps_of(folder) > at + 20_000, 40, run)
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "is gone" in said
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(row["lag/max"] for row in rows if "lag/max" in row) <= 2


def said_of(folder: Path, run: subprocess.Popen) -> list[str]:
    """Restarts that the metrics tell of, in words."""
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    return ["lives again"] if json.loads(rows[-1])["run/restarts"] >= 2 else []


def test_what_the_cluster_cannot_give_is_said_at_once(tmp_path: Path) -> None:
    with Cluster(cpus=2) as cluster:
        began = time.monotonic()
        run = srl(cluster, tmp_path, "train", "ppo", "--actors", "40", "--envs", "160")
        said, _ = run.communicate(timeout=60)
        assert run.returncode == 2
        assert "needs 41 CPUs (1 x trainer main, 40 x actor main)" in said
        assert "the whole cluster has 2" in said
        assert time.monotonic() - began < 10


@pytest.mark.clusters
def test_a_run_begins_with_the_actors_there_is_room_for_and_others_join(tmp_path: Path) -> None:
    words = ["impala", "--actors", "4", "--envs", "16", "--max-lag", "2", "--steps", "100000000", "--no-compile"]
    with Hosts(2) as hosts, Cluster(hosts, cpus=3) as cluster:
        cluster.kill_host(1)
        more = ["--set", "actors.main.least=1", "--set", "log_every=2000", "--stop-at-reward", "1000", "--name", "r"]
        run = srl(cluster, tmp_path, "train", *words, *more)
        folder = tmp_path / "r"
        wait_for(lambda: steps_of(folder) > 4_000, 60, run)
        # Ray has room for two, whichever they are.
        assert len(list((folder / "logs").glob("actor-*"))) == 2
        cluster.start_host(1)
        wait_for(lambda: len(list((folder / "logs").glob("actor-*"))) == 4, 60, run)
        at = steps_of(folder)
        wait_for(lambda: steps_of(folder) > at + 10_000, 60, run)
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said


def test_nobody_answers_at_an_address(tmp_path: Path) -> None:
    with pytest.raises(control.UserError, match=r"no Ray cluster answers at 127\.0\.0\.1:9"):
        control.train(impala("CartPole-v1", **SMALL), launcher="ray", address="127.0.0.1:9", runs_folder=tmp_path)


@pytest.mark.clusters
def test_ranks_on_two_hosts_go_on_from_the_checkpoint_when_a_host_dies_and_comes_back(tmp_path: Path) -> None:
    words = ["ppo", "--actors", "2", "--envs", "16", "--trainers", "2", "--steps", "100000000", "--no-compile"]
    # Two trainers of two threads do not fit on one host.
    every = ["checkpoint_every=10000", "log_every=2000", "restarts.window=120", "trainers.main.threads=2"]
    more = [word for setting in every for word in ("--set", setting)]
    with Hosts(2) as hosts, Cluster(hosts, cpus=3) as cluster:
        run = srl(cluster, tmp_path, "train", *words, *more, "--stop-at-reward", "1000", "--name", "r")
        folder = tmp_path / "r"
        wait_for(lambda: steps_of(folder) > 25_000, 90, run)
        cluster.kill_host(1)
        before = steps_of(folder)
        wait_for(lambda: summary_of(folder)["status"] == "running" and has_gone_back(folder, before), 60, run)
        cluster.start_host(1)
        wait_for(lambda: steps_of(folder) > before + 10_000, 90, run)
        run.send_signal(signal.SIGINT)
        said, _ = run.communicate(timeout=60)
    assert run.returncode == 130, said
    assert "everything starts again from the last checkpoint" in said
    lost = [int(line.split()[1].replace(",", "")) for line in said.splitlines() if line.startswith("lost: ")]
    assert lost
    assert max(lost) <= 10_000 + 2_000


def has_gone_back(folder: Path, before: int) -> bool:
    """Whether the curve ends at the checkpoint that the run goes on from."""
    return steps_of(folder) <= before
