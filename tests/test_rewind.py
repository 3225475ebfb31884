"""A run that goes on takes back what was measured beyond its checkpoint: no row and no event is there twice."""

import os

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as Scalars
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator as Tensors

from srl.metrics import STEPS, JsonLines, TensorBoard, read_rows
from srl.rewind import rewind


def written(folder, rows):
    """Write rows as a part of a run does; two parts never begin in the same second."""
    later(folder)
    for sink in (JsonLines(folder / "metrics.jsonl"), TensorBoard(folder)):
        for steps, *tags in rows:
            sink.write({STEPS: steps, **dict.fromkeys(tags, float(steps))})
        sink.close()


def later(folder):
    """Let the event files that are there be some seconds older, by their names, whose order readers follow."""
    for path in sorted(folder.glob("events.*"), reverse=True):
        older(path, 10)


def older(path, seconds):
    start, at, rest = path.name.partition("tfevents.")
    stamp, _, host = rest.partition(".")
    path.rename(path.with_name(f"{start}{at}{int(stamp) - seconds:010d}.{host}"))


def curves(folder):
    """The steps of every tag as TensorBoard reads them: its own reader and the classic one agree."""
    tensors, scalars = Tensors(str(folder)), Scalars(str(folder))
    tensors.Reload()
    scalars.Reload()
    found = {tag: [event.step for event in tensors.Tensors(tag)] for tag in tensors.Tags()["tensors"]}
    assert found == {tag: [event.step for event in scalars.Scalars(tag)] for tag in scalars.Tags()["scalars"]}
    return found


def rows(folder, tag):
    return [row[STEPS] for row in read_rows(folder / "metrics.jsonl") if tag in row]


FIRST = [(10, "a"), (20, "a", "b"), (30, "a"), (30, "eval"), (40, "a", "b"), (50, "a")]


def test_curves_have_no_doubles_and_no_gaps(tmp_path):
    written(tmp_path, FIRST)
    rewind(tmp_path, 30)
    written(tmp_path, [(45, "a"), (55, "a", "b")])
    expected = {"a": [10, 20, 30, 45, 55], "b": [20, 55], "eval": [30]}
    assert curves(tmp_path) == expected
    assert {tag: rows(tmp_path, tag) for tag in expected} == expected


def test_a_run_may_go_on_often(tmp_path):
    written(tmp_path, FIRST)
    for steps in (40, 30, 20):
        later(tmp_path)
        rewind(tmp_path, steps)
        assert curves(tmp_path)["a"] == rows(tmp_path, "a") == list(range(10, steps + 1, 10))
        written(tmp_path, [(steps + 5, "a"), (steps + 50, "a")])
    assert curves(tmp_path)["a"] == rows(tmp_path, "a") == [10, 20, 25, 70]


def test_a_reader_that_has_seen_them_drops_them_too(tmp_path):
    written(tmp_path, FIRST)
    later(tmp_path)
    seen = set(tmp_path.glob("events.*"))
    reader = Tensors(str(tmp_path))
    reader.Reload()
    rewind(tmp_path, 30)
    for path in set(tmp_path.glob("events.*")) - seen:
        older(path, 5)
    sink = TensorBoard(tmp_path)
    sink.write({STEPS: 45, "a": 45.0})
    sink.close()
    reader.Reload()
    assert [event.step for event in reader.Tensors("a")] == [10, 20, 30, 45]
    assert [event.step for event in reader.Tensors("b")] == [20]


def test_nothing_to_take_back_changes_nothing_that_is_read(tmp_path):
    written(tmp_path, FIRST)
    before = curves(tmp_path), (tmp_path / "metrics.jsonl").read_bytes()
    rewind(tmp_path, 50)
    assert (curves(tmp_path), (tmp_path / "metrics.jsonl").read_bytes()) == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_run_without_metrics_is_left_alone(tmp_path):
    rewind(tmp_path, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_what_was_being_written_when_the_run_died_is_left_out(tmp_path, cut):
    written(tmp_path, FIRST)
    (events,) = tmp_path.glob("events.*")
    for path in (events, tmp_path / "metrics.jsonl"):
        os.truncate(path, path.stat().st_size - cut)
    rewind(tmp_path, 30)
    written(tmp_path, [(60, "a")])
    assert curves(tmp_path)["a"] == rows(tmp_path, "a") == [10, 20, 30, 60]


def test_events_that_cannot_be_read_are_left_out(tmp_path):
    written(tmp_path, FIRST)
    (events,) = tmp_path.glob("events.*")
    events.write_bytes(events.read_bytes()[:300].replace(b"a", b"\xff") + b"\xff" * 100)
    rewind(tmp_path, 30)
    (tmp_path / "metrics.jsonl").write_text(
        '[1]\nnull\n{"time/total_timesteps": "x"}\n{}\n{"time/total_timesteps": 1}\n'
    )
    rewind(tmp_path, 30)
    assert read_rows(tmp_path / "metrics.jsonl") == [{STEPS: 1}]
