"""One experiment as serial, as local, inline and with policy workers: same code, same numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from srl import control
from srl.experiment import Experiment
from srl.metrics import read_rows
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo

SHORT = {"steps": 6_000, "rollout": 32, "envs": 8, "stop_at_reward": 1e9}


def run(experiment: Experiment, folder: Path, launcher: control.LauncherName) -> tuple[str, list[dict]]:
    """The digest of the final weights, and all metrics that are not about time."""
    experiment = replace(experiment, log_every=1000)
    result = control.train(experiment, launcher=launcher, runs_folder=folder, quiet=True)
    rows = [
        {name: value for name, value in row.items() if not name.startswith(("perf/", "time/fps", "time/seconds"))}
        for row in read_rows(result.path / "metrics.jsonl")
    ]
    assert len(rows) > 5
    return result.summary["weights_sha256"], rows


CASES = {
    "ppo": lambda **more: ppo(**SHORT, **more),
    "ppo, lstm, normalised": lambda **more: ppo(**SHORT, memory="lstm", normalise=True, **more),
    "ppo, continuous": lambda **more: ppo("Pendulum-v1", **SHORT, normalise=True, **more),
    "impala": lambda **more: impala(**SHORT, max_lag=0, **more),
}


@pytest.mark.parametrize("case", CASES)
def test_serial_and_local_and_twice_are_bit_identical(tmp_path: Path, case: str) -> None:
    experiment = CASES[case](actors=2)
    serial = run(experiment, tmp_path, "serial")
    assert run(experiment, tmp_path, "serial") == serial
    assert run(experiment, tmp_path, "local") == serial
    assert run(experiment, tmp_path, "local") == serial


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    one, two = (run(ppo(**SHORT, seed=seed), tmp_path, "serial")[0] for seed in (1, 2))
    assert one != two


def test_the_number_of_actors_does_not_matter(tmp_path: Path) -> None:
    spread = [ppo(**SHORT, actors=actors, ring=4 // actors) for actors in (1, 2, 4)]
    digests = {run(experiment, tmp_path, "serial")[0] for experiment in spread}
    assert len(digests) == 1


def test_policy_workers_give_what_inline_gives(tmp_path: Path) -> None:
    inline = run(ppo(**SHORT, actors=2), tmp_path, "local")
    remote = ppo(**SHORT, actors=2, act="shm", policy_workers=2)
    assert run(remote, tmp_path, "serial") == inline
    assert run(remote, tmp_path, "local") == inline


@pytest.mark.parametrize("max_lag", [0, 1, 4])
@pytest.mark.parametrize("act", ["inline", "shm"])
def test_no_segment_is_older_than_the_lag_allows(tmp_path: Path, max_lag: int, act: str) -> None:
    experiment = ppo(**SHORT, actors=2, ring=2, act=act, max_lag=max_lag)
    result = control.train(replace(experiment, log_every=1), runs_folder=tmp_path, quiet=True)
    rows = read_rows(result.path / "metrics.jsonl")
    assert all(row["lag/max"] <= max_lag for row in rows)
    assert result.summary["lag_max"] <= max_lag
    # Actors really run ahead where they may, and the bound is not met by standing still.
    assert (result.summary["lag_mean"] > 0) == (max_lag > 0)


def test_late_segments_are_dropped_where_the_stream_says_so(tmp_path: Path) -> None:
    experiment = ppo("srl.envs.fake:Slow", **SHORT, actors=2, max_lag=1)
    stream = replace(experiment.streams["main"], late="drop", batch=1)
    result = control.train(
        replace(experiment, streams={"main": stream}, stop=replace(experiment.stop, steps=1000)),
        runs_folder=tmp_path,
        quiet=True,
    )
    assert result.summary["lag_max"] <= 1
