"""Experiments are plain data: loose ends are named, and neither writing nor importing one loads torch."""

import dataclasses
import subprocess
import sys

import pytest

from srl.errors import UserError
from srl.experiment import Actors, Evaluate, Experiment, Train, only
from srl.recipes.ppo import ppo

BASE = ppo()
ACTORS, POLICIES, TRAINERS = BASE.actors["main"], BASE.policies["main"], BASE.trainers["main"]
EVALUATION = Actors(env="E-v0", train=None, evaluate=Evaluate())


def changed(**groups):
    return dataclasses.replace(BASE, **groups)


def test_a_recipes_experiment_has_no_loose_end():
    assert BASE.check() is BASE


def test_the_only_group_needs_no_name():
    alone = Experiment(actors=ACTORS, policies=POLICIES, trainers=TRAINERS, streams=Train())
    assert alone.actors == {"main": ACTORS}
    assert alone.streams == {"main": Train()}
    assert only(alone.policies) == ("main", POLICIES)


class Lonely:
    """An algorithm that knows of no other trainers."""

    def build(self, policy, seed=0): ...


TWO = dataclasses.replace(TRAINERS, count=2)
ONE = dataclasses.replace(ACTORS, count=1)
PAIR = {"streams": Train(batch=2), "actors": dataclasses.replace(ACTORS, count=2)}
OTHER = dataclasses.replace(ACTORS, envs=ACTORS.envs + 1)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"actors": {"a": dataclasses.replace(ACTORS, policy="mian")}}, "'mian'.*did you mean 'main'"),
        ({"actors": {"a": dataclasses.replace(ACTORS, train="mian")}}, "'mian'.*did you mean 'main'"),
        ({"actors": {"a": dataclasses.replace(ACTORS, train=None)}}, "'a' must either feed a train stream or evaluate"),
        ({"actors": {"a": dataclasses.replace(ACTORS, evaluate=Evaluate())}}, "must either feed"),
        ({"actors": {"a": ACTORS, "b": OTHER}}, "need the same envs"),
        ({"actors": {"a": EVALUATION}}, "no actors feed"),
        ({"trainers": {}}, "no trainers"),
        ({"trainers": {"t": dataclasses.replace(TRAINERS, policy="mian")}}, "'main', which no trainers publish"),
        ({"trainers": {"t": dataclasses.replace(TRAINERS, train="mian")}}, "'mian'.*did you mean 'main'"),
        ({"streams": {"main": Train(), "unused": Train()}}, "'unused' must have exactly one"),
        ({"trainers": {"t": TRAINERS, "u": TRAINERS}}, "one writer"),
        ({"policies": {"main": POLICIES, "unused": POLICIES}}, "unused"),
        ({"trainers": TWO, "streams": Train(batch=3)}, "2 trainers cannot share batches of 3 segments equally"),
        ({"trainers": TWO, "streams": Train(batch=2), "actors": ONE}, "each of 2 trainers needs an actor.*there are 1"),
        ({"trainers": dataclasses.replace(TWO, algorithm=Lonely()), **PAIR}, "Lonely.build takes no ranks"),
    ],
)
def test_a_loose_end_is_named(groups, said):
    with pytest.raises(UserError, match=said):
        changed(**groups).check()


def test_several_trainers_with_a_part_of_the_batch_each_are_no_loose_end():
    changed(trainers=TWO, **PAIR).check()


def test_a_policy_has_one_trainer():
    # The weights of a policy have one writer.
    streams = {"main": Train(), "more": Train()}
    actors = {"a": ACTORS, "b": dataclasses.replace(ACTORS, train="more")}
    trainers = {"t": TRAINERS, "u": dataclasses.replace(TRAINERS, train="more")}
    with pytest.raises(UserError, match="main"):
        changed(actors=actors, trainers=trainers, streams=streams).check()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Actors(env="E-v0", count=0), "Actors.count must be 1 or more, not 0"),
        (lambda: Actors(env="E-v0", envs=-1), "Actors.envs"),
        (lambda: Evaluate(episodes=0), "Evaluate.episodes"),
        (lambda: dataclasses.replace(POLICIES, act="shn"), "did you mean 'shm'"),
        (lambda: dataclasses.replace(POLICIES, max_batch=0), "max_batch"),
        (lambda: Train(late="dropp"), "did you mean 'drop'"),
        (lambda: Train(max_lag=-1), "max_lag must be 0 or more, not -1"),
        (lambda: Train(rollout=10, chunk=3), "chunk must divide rollout"),
        (lambda: Train(rollout=10, chunk=20), "chunk must divide rollout"),
        (lambda: Train(batch=0), "Train.batch"),
        (lambda: dataclasses.replace(TRAINERS, threads=0), "threads"),
        (lambda: dataclasses.replace(TRAINERS, count=0), "Trainers.count must be 1 or more, not 0"),
        (lambda: changed(keep=0), "keep"),
        (lambda: changed(actors=[ACTORS]), "actors must be Actors"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, said):
    with pytest.raises(UserError, match=said):
        make()


@pytest.mark.parametrize(("batch", "max_lag", "slots"), [(1, 0, 1), (4, 0, 4), (4, 2, 12)])
def test_credits_follow_from_batch_and_lag(batch, max_lag, slots):
    assert Train(batch=batch, max_lag=max_lag).slots == slots


def test_experiments_are_compared_by_value():
    assert ppo() == ppo()
    assert ppo(seed=2) != ppo()
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.seed = 3


@pytest.mark.parametrize(
    "work",
    [
        "import srl; assert 'ActorCritic' in dir(srl)",
        "import srl.experiment",
        "import srl.settings, srl.runs, srl.control, srl.launchers.plan, srl.cli",
        "import srl; srl.PPO(); srl.ActorCritic(memory=srl.LSTM()); srl.Experiment",
        "from srl.recipes.ppo import ppo; from srl.settings import to_yaml; to_yaml(ppo(memory='gru').check())",
    ],
)
def test_experiments_are_written_without_torch(work):
    check = "import sys; loaded = {'torch', 'tensorboard'} & set(sys.modules); assert not loaded, loaded"
    subprocess.run([sys.executable, "-c", f"{work}\n{check}"], check=True, timeout=60)


def test_names_of_the_package_are_found_where_they_live():
    import srl

    for name in srl.__all__:
        assert getattr(srl, name).__module__ == srl._HOME[name]
    with pytest.raises(AttributeError, match="Experimnt"):
        _ = srl.Experimnt
