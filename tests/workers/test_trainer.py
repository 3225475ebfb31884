"""The trainer counts what it learned from, publishes each version, and knows when it is finished."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from srl.experiment import Stop, Train
from srl.launchers import plan
from srl.launchers.build import Builder
from srl.launchers.shapes import describe
from srl.params import file as checkpoints
from srl.params.shm import Reader
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from srl.streams.base import Slot, segment_spec
from srl.tree import tree_map, zeros
from srl.workers.loader import Block
from srl.workers.trainer import Progress

from .literal import SHAPES

SMALL = {"hidden": (4,), "envs": 2, "rollout": 8}
LENGTHS = (3, 5)


class Link:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)

    def of(self, kind):
        return [message for message in self.sent if message["kind"] == kind]


class Bench:
    """A trainer and its actors, stepped by hand."""

    def __init__(self, folder, experiment, resume=False):
        shapes = describe(experiment)
        self.resources = {need.name: need.make() for need in plan.needs_of(experiment, shapes)}
        self.link, builder = Link(), Builder(experiment, shapes, folder, resume=resume)
        workers = {task: builder.build(task, self.resources, self.link) for task in plan.tasks_of(experiment)}
        self.trainer = next(worker for task, worker in workers.items() if task.kind == "trainer")
        self.actors = [worker for task, worker in workers.items() if task.kind == "actor"]
        self.model = experiment.policies["main"].model.build(shapes["main"].obs, shapes["main"].action)
        self.reader = Reader(shapes["main"].params, self.resources["params/main"], self.model.module)

    def act(self):
        """Until every credit is used."""
        for _ in iter(lambda: [True for actor in self.actors if actor.step()], []):
            pass

    def update(self, count=1):
        for _ in range(count):
            self.act()
            assert self.trainer.step()

    def finish(self, reason):
        """Ask the trainer to stop, as control does; it does so after the update under way."""
        self.trainer.command({"do": "finish", "reason": reason})
        while not self.link.of("finished"):
            self.act()
            assert self.trainer.step()

    def finished(self):
        (message,) = self.link.of("finished")
        return message

    def close(self):
        for resource in self.resources.values():
            resource.close()


def counting(recipe=ppo, **parameters):
    experiment = recipe("srl.envs.fake:Counting", **{**SMALL, "steps": 10**9, "compile": False, **parameters})
    kwargs = {"lengths": LENGTHS, "ends": ("terminated", "truncated")}
    actors = {name: replace(group, env_kwargs=kwargs) for name, group in experiment.actors.items()}
    return replace(experiment, actors=actors, log_every=1)


@pytest.fixture
def bench(tmp_path):
    """A function that makes benches, all closed in the end."""
    made = []

    def one(experiment, **options):
        made.append(Bench(tmp_path, experiment, **options))
        return made[-1]

    yield one
    for each in made:
        each.close()


def rows_of(count):
    """Valid rows, episodes, lengths and the lag of so many rows of one environment, counted by hand."""
    valid, lengths, left, turn = 0, [], LENGTHS[0], 0
    for _ in range(count):
        if left == 0:
            turn += 1
            left = LENGTHS[turn % 2]
            continue
        valid, left = valid + 1, left - 1
        if left == 0:
            lengths.append(LENGTHS[turn % 2])
    return valid, lengths


def test_steps_episodes_and_versions_are_counted(bench):
    one = bench(counting())
    one.update(5)
    valid, lengths = rows_of(5 * 8)
    progress = one.trainer.progress
    assert (progress.version, progress.steps, progress.episodes) == (5, 2 * valid, 2 * len(lengths))
    assert sorted(progress.lengths) == sorted(2 * lengths)
    row = one.link.of("progress")[-1]["row"]
    assert row["time/total_timesteps"] == 2 * valid
    assert row["rollout/episodes"] == 2 * len(lengths)
    assert row["rollout/ep_len_mean"] == pytest.approx(np.mean(lengths))
    assert row["rollout/ep_rew_mean"] == pytest.approx(np.mean(progress.returns))
    assert {"train/loss", "train/version", "lag/mean", "lag/max", "lag/dropped", "time/seconds"} <= set(row)


def test_nothing_is_learned_until_a_batch_is_complete(bench):
    one = bench(counting(actors=2))
    assert not one.trainer.step()
    while one.actors[0].step():
        pass
    assert not one.trainer.step()
    assert one.trainer.progress.version == 0
    one.act()
    assert one.trainer.step()


def test_every_version_is_published_with_its_weights(bench):
    one = bench(counting())
    assert one.reader.refresh()
    assert one.reader.version == 0
    for version in (1, 2):
        before = [tensor.clone() for tensor in one.model.module.parameters()]
        one.update()
        assert one.reader.refresh()
        assert (one.reader.version, one.reader.steps) == (version, one.trainer.progress.steps)
        assert any((old != new).any() for old, new in zip(before, one.model.module.parameters(), strict=True))


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_lag_is_measured_and_bounded(bench, max_lag):
    one = bench(counting(impala, max_lag=max_lag))
    one.update(8)
    lags = [message["row"]["lag/max"] for message in one.link.of("progress")]
    assert max(lags) == max_lag
    one.finish("enough")
    assert one.finished()["summary"]["lag_max"] == max_lag


@pytest.mark.parametrize(
    ("stop", "reason"), [(Stop(steps=60), "steps"), (Stop(reward=1.0), "reward"), (Stop(seconds=0.0), "trained for")]
)
def test_a_run_stops_by_whatever_holds_first(bench, tmp_path, stop, reason):
    one = bench(replace(counting(envs=16), stop=stop))
    for _ in range(30):
        one.act()
        if not one.trainer.step():
            break
    message = one.finished()
    assert reason in message["reason"]
    assert message["summary"]["steps"] == one.trainer.progress.steps
    checkpoint = checkpoints.load(tmp_path / "checkpoints" / "main", "latest")
    assert checkpoint.meta["steps"] == one.trainer.progress.steps
    assert message["summary"]["weights_sha256"] == checkpoints.sha256_of(checkpoint.weights())
    one.act()
    assert not one.trainer.step()


def test_the_reward_only_counts_over_a_hundred_episodes(bench):
    one = bench(replace(counting(), stop=Stop(reward=1.0)))
    while one.trainer.progress.episodes < 100:
        assert not one.link.of("finished")
        assert one.trainer.progress.best is None
        one.update()
    one.act()
    assert one.trainer.step(), "the checkpoint is due"
    assert one.finished()
    assert one.trainer.progress.best is not None


def test_a_trainer_that_is_told_to_finishes_once(bench, tmp_path):
    one = bench(counting())
    one.trainer.command({"do": "finish", "reason": "interrupted"})
    one.finish("interrupted")
    assert one.finished()["reason"] == "interrupted"
    assert not one.trainer.step()
    steps = one.trainer.progress.steps
    assert checkpoints.load(tmp_path / "checkpoints" / "main", "latest").meta["steps"] == steps > 0
    with pytest.raises(ValueError, match="dance"):
        one.trainer.command({"do": "dance"})


def test_checkpoints_are_written_on_the_way_and_the_newest_kept(bench, tmp_path):
    one = bench(replace(counting(), checkpoint_every=20, keep=2))
    one.update(12)
    assert len(list((tmp_path / "checkpoints" / "main").glob("step_*"))) == 2
    assert not one.link.of("finished")


def test_a_resumed_trainer_goes_on_where_it_was(bench):
    first = bench(counting())
    first.update(3)
    first.finish("interrupted")
    second = bench(counting(), resume=True)
    before, after = first.trainer.progress, second.trainer.progress
    assert after.to_plain() == before.to_plain()
    second.reader.refresh()
    assert second.reader.version == 4
    first.reader.refresh()
    old, new = (one.model.module.state_dict() for one in (first, second))
    assert all(torch.equal(old[name], new[name]) for name in old)
    second.update()
    assert second.trainer.progress.version == 5


def test_a_trainer_that_had_finished_has_finished(bench, tmp_path):
    experiment = replace(counting(), stop=Stop(steps=60))
    first = bench(experiment)
    while not first.link.of("finished"):
        first.act()
        assert first.trainer.step()
    kept = sorted(path.name for path in (tmp_path / "checkpoints" / "main").iterdir())
    second = bench(experiment, resume=True)
    second.act()
    assert not second.trainer.step()
    for name in ("steps", "version", "episodes", "ep_rew_mean", "weights_sha256"):
        assert second.finished()["summary"][name] == first.finished()["summary"][name]
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "main").iterdir()) == kept
    third = bench(replace(experiment, stop=Stop(steps=90)), resume=True)
    third.update()
    assert third.trainer.progress.steps > 60


def test_progress_survives_plain_data():
    progress = Progress(steps=3, version=2, episodes=1, best=4.0, seconds=1.5)
    progress.returns.extend(range(150))
    again = Progress.from_plain(progress.to_plain())
    assert again == progress
    assert again.returns.maxlen == 100
    assert again.reward == pytest.approx(99.5)
    assert Progress().reward is None


def test_a_batch_lays_segments_side_by_side():
    spec = segment_spec(SHAPES, 4, 3, 2)
    slots = [Slot(at, at, at, 0, tree_map(lambda x, n=at: np.full_like(x, n), zeros(spec))) for at in (5, 2)]
    batch = Block(slots[0].segment, 2).fill(slots)
    assert not {"version", "episode_return", "episode_length"} & set(batch)
    assert batch["obs"].shape == (5, 6, 2)
    assert batch["state"]["h"].shape == (3, 6)
    assert batch["reward"][0].tolist() == [5, 5, 5, 2, 2, 2]


def test_slots_are_given_back_before_training_but_granted_after_the_publish(bench):
    one = bench(replace(counting(), streams={"main": Train(rollout=8, batch=1)}))
    one.update()
    one.act()
    assert one.trainer.step(), "the credit of version 1 was granted"
    assert max(message["row"]["lag/max"] for message in one.link.of("progress")) == 0
