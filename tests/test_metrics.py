"""Time is charged to what was done, one line says what bounds a run, and rows survive a crash."""

import re
import time

import pytest

from srl import flags
from srl.metrics import STEPS, Clock, JsonLines, Meter, TensorBoard, read_rows
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo


def metered(**phases):
    meter = Meter()
    for kind, split in phases.items():
        meter.add(kind, {"phases": split, "cpu": 0.5})
    return meter


def test_a_clock_charges_all_time_to_phases():
    started, clock = time.perf_counter(), Clock()
    for phase in ("env", "act", "env"):
        time.sleep(0.01)
        clock.lap(phase)
    passed = time.perf_counter() - started
    phases = clock.collect()["phases"]
    assert set(phases) == {"env", "act"}
    assert phases["env"] > 0.019
    assert sum(phases.values()) == pytest.approx(passed, abs=0.01)
    assert clock.collect()["phases"] == {}


def test_shares_sum_to_one_and_old_reports_fade():
    meter = metered(actor={"env": 1.0, "act": 3.0})
    assert meter.shares("actor") == {"env": 0.25, "act": 0.75}
    for _ in range(30):
        meter.add("actor", {"phases": {"env": 1.0}, "cpu": 0.5})
    assert meter.shares("actor")["env"] > 0.99
    assert sum(meter.shares("actor").values()) == pytest.approx(1)
    assert meter.cpu_seconds == pytest.approx(15.5)
    assert set(meter.row()) == {"perf/actor/env", "perf/actor/act"}
    assert Meter().shares("actor") == {}


BUSY, IDLE = {"train": 9.0, "wait-data": 1.0}, {"train": 1.0, "wait-data": 9.0}
BOUNDS = {
    "training": metered(trainer=BUSY, actor={"env": 1.0}),
    "credits": metered(trainer=IDLE, actor={"env": 1.0, "wait-credit": 1.0}),
    "environments": metered(trainer=IDLE, actor={"env": 9.0, "act": 1.0}),
    "inference": metered(trainer=IDLE, actor={"env": 1.0, "act": 9.0}),
    "waiting for replies": metered(trainer=IDLE, actor={"env": 1.0, "wait-act": 9.0}, policy={"wait-request": 1.0}),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_what_bounds_a_run_is_said_in_one_line(what):
    assert BOUNDS[what].bound().startswith(what)
    assert Meter().bound() == "starting"


@pytest.mark.parametrize("what", BOUNDS)
@pytest.mark.parametrize("recipe", [ppo, impala])
def test_flags_that_are_advised_exist(recipe, what):
    parser = flags.Parser(prog="x")
    flags.add_parameters(parser, recipe)
    known = {flag for action in parser._actions for flag in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", BOUNDS[what].bound())) <= known


def test_rows_are_read_back_and_appended_to(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for start in (0, 10):
        sink = JsonLines(path)
        sink.write({STEPS: start, "x": None})
        sink.close()
    assert read_rows(path) == [{STEPS: 0, "x": None}, {STEPS: 10, "x": None}]


def test_a_torn_last_line_is_left_out_and_costs_no_row_after_it(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":2,"b"')
    assert read_rows(path) == [{"a": 1}]
    sink = JsonLines(path)
    sink.write({"a": 3})
    sink.write({"a": 4})
    sink.close()
    assert read_rows(path) == [{"a": 1}, {"a": 3}, {"a": 4}]


def test_tensorboard_gets_every_number_on_the_axis_of_steps(tmp_path):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    sink = TensorBoard(tmp_path)
    sink.write({STEPS: 100, "train/loss": 0.5, "rollout/episodes": 3, "text": "x", "nothing": None})
    sink.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    events = [event for event in EventFileLoader(str(file)).Load() if event.HasField("summary")]
    assert [event.step for event in events] == [100]
    tags = {value.tag for value in events[0].summary.value}
    assert tags == {"train/loss", "rollout/episodes"}
