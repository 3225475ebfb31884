"""A run as a job of a cluster: what is wrong is said before it is sent, and what it says comes back."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from srl import cli
from tests.cluster import Cluster, _free_port


def test_what_is_wrong_with_the_words_is_said_here(capsys) -> None:
    assert cli.main(["submit", "ppo", "--lenght", "3"]) == 2
    assert "unknown flag '--lenght'" in capsys.readouterr().err


def test_where_no_cluster_answers_that_is_said(capsys) -> None:
    assert cli.main(["submit", "ppo", "--dashboard", "http://127.0.0.1:9"]) == 2
    assert "no cluster's dashboard answers at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.clusters
def test_a_job_trains_and_says_what_it_does(tmp_path: Path) -> None:
    port = _free_port()
    with Cluster(cpus=4, dashboard=port) as cluster:
        words = ["ppo", "--actors", "2", "--steps", "4000", "--no-compile", "--runs", str(tmp_path), "--name", "job"]
        argv = [sys.executable, "-W", "error", "-m", "srl.cli", "submit", *words, "--dashboard"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        sent = cluster.run(0, [*argv, f"http://127.0.0.1:{port}"], cwd=tmp_path, **pipes)
        said, _ = sent.communicate(timeout=120)
    assert sent.returncode == 0, said
    assert "completed: reached" in said
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["status"] == "completed"
