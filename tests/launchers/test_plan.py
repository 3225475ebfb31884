"""The plan names every worker and gives each exactly the resources it works with."""

import os
from dataclasses import replace

import pytest

from srl.experiment import Experiment, Train
from srl.launchers import plan
from srl.launchers.build import Builder
from srl.launchers.plan import Task
from srl.launchers.shapes import describe
from srl.memory import Channel, Memory
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo

SIZE = {"hidden": (4,), "rollout": 4, "compile": False}
ENV = "srl.envs.fake:Counting"
SHM = impala(ENV, actors=2, ring=2, envs=8, act="shm", policy_workers=2, eval_every=100, max_lag=1, **SIZE)
INLINE = ppo(ENV, envs=2, **SIZE)


def two_policies():
    """Two graphs in one experiment, whose names begin alike."""
    one = {"main": SHM.actors["main"], "main2": replace(SHM.actors["main"], policy="main2", train="main2", ring=1)}
    return Experiment(
        actors=one,
        policies={"main": SHM.policies["main"], "main2": SHM.policies["main"]},
        trainers={
            "main": SHM.trainers["main"],
            "main2": replace(SHM.trainers["main"], policy="main2", train="main2"),
        },
        streams={"main": SHM.streams["main"], "main2": Train(rollout=2, batch=2)},
    ).check()


RANKS = ppo(ENV, actors=5, ring=2, envs=20, trainers=2, max_lag=1, **SIZE)
EXPERIMENTS = {"shm": SHM, "inline": INLINE, "two": two_policies(), "ranks": RANKS}


class Link:
    """Hears nothing; what is sent is let go."""

    def send(self, message):
        pass


def test_every_worker_is_a_task():
    assert [task.name for task in plan.tasks_of(SHM)] == [
        "trainer-main-0",
        "policy-main-0",
        "policy-main-1",
        "actor-main-0",
        "actor-main-1",
        "evaluator-eval-0",
    ]
    assert [task.kind for task in plan.tasks_of(INLINE)] == ["trainer", "actor"]


def test_lanes_are_numbered_through():
    lanes = plan.lanes_of(SHM, plan.act_actors(SHM, "main"))
    assert [(lane.index, lane.actor, lane.rows) for lane in lanes] == [(0, 0, 2), (1, 0, 2), (2, 1, 2), (3, 1, 2)]


def test_an_evaluator_neither_asks_nor_feeds():
    evaluator = Task("evaluator", "eval", 0)
    assert evaluator not in plan.act_actors(SHM, "main")
    assert evaluator not in plan.train_actors(SHM, "main")
    needs = plan.needed_by(evaluator, SHM, plan.needs_of(SHM, describe(SHM)))
    assert {need.name for need in needs} == {"beats", "params/main"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_resource_has_a_name_of_its_own_and_someone_who_needs_it(name):
    experiment = EXPERIMENTS[name]
    needs = plan.needs_of(experiment, describe(experiment))
    names = [need.name for need in needs]
    assert len(set(names)) == len(names)
    used = {need.name for task in plan.tasks_of(experiment) for need in plan.needed_by(task, experiment, needs)}
    assert used == set(names)
    assert all((need.nbytes > 0) + bool(need.record) + bool(need.door) == 1 for need in needs)


def test_nobody_is_given_what_belongs_to_another_policy_or_actor():
    experiment = EXPERIMENTS["two"]
    needs = plan.needs_of(experiment, describe(experiment))
    for task in plan.tasks_of(experiment):
        names = {need.name for need in plan.needed_by(task, experiment, needs)} - {"beats"}
        assert {name.split("/")[1] for name in names} == {task.group}
        if task.kind == "actor":
            own = {name for name in names if name.rpartition("/")[2].isdigit()}
            alone = {f"act/{task.group}/replies/{task.index}", f"train/{task.group}/credits/{task.index}"}
            assert own == alone | {f"train/{task.group}/0"}


def test_each_rank_is_given_its_part_of_the_stream():
    needs = plan.needs_of(RANKS, describe(RANKS))
    actors = plan.train_actors(RANKS, "main")
    parts = [plan.part_of(RANKS, "main", rank) for rank in range(2)]
    assert parts == [actors[:2], actors[2:]]
    for rank, part in enumerate(parts):
        own = {"params/main", "beats", "ranks/main", f"train/main/{rank}", f"train/main/{rank}/full"}
        own |= {f"train/main/credits/{actors.index(actor)}" for actor in part}
        trainer = Task("trainer", "main", rank)
        assert {need.name for need in plan.needed_by(trainer, RANKS, needs)} == own
        for actor in part:
            assert plan.rank_of(RANKS, "main", actor) == trainer
            assert f"train/main/{rank}" in {need.name for need in plan.needed_by(actor, RANKS, needs)}
    sizes = [need.nbytes for need in needs if need.name.startswith("train/main/") and need.nbytes]
    alone = plan.needs_of(ppo(ENV, actors=5, ring=2, envs=20, max_lag=1, **SIZE), describe(RANKS))
    assert sizes == [next(need.nbytes for need in alone if need.name == "train/main/0") // 2] * 2


@pytest.mark.parametrize("name", EXPERIMENTS.keys() - {"ranks"})
def test_each_worker_is_built_from_what_it_is_given_alone(name, tmp_path):
    experiment = EXPERIMENTS[name]
    shapes = describe(experiment)
    needs = plan.needs_of(experiment, shapes)
    resources = {need.name: need.make() for need in needs}
    builder = Builder(experiment, shapes, tmp_path)
    for task in plan.tasks_of(experiment):
        given = {need.name: resources[need.name] for need in plan.needed_by(task, experiment, needs)}
        builder.build(task, given, Link()).close()
    for resource in resources.values():
        resource.close()


def test_the_plan_is_the_same_for_whoever_computes_it():
    shapes = describe(SHM)
    assert plan.needs_of(SHM, shapes) == plan.needs_of(SHM, dict(shapes))
    assert plan.tasks_of(SHM) == plan.tasks_of(replace(SHM))


def test_a_need_is_made_anew_or_attached_to_descriptors():
    memory, channel = plan.Need("m", nbytes=10).make(), plan.Need("c", record="<i").make()
    assert isinstance(memory, Memory)
    assert isinstance(channel, Channel)
    again = plan.Need("c", record="<i").make([os.dup(fd) for fd in channel.fds()])
    shared = plan.Need("m", nbytes=10).make([os.dup(fd) for fd in memory.fds()])
    again.put(7)
    shared.buffer[0] = 1
    assert channel.take() == [(7,)]
    assert memory.buffer[0] == 1
    for resource in (memory, channel, again, shared):
        resource.close()
