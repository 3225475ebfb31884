"""The workloads are what they are said to be, and train."""

import pytest

from srl.errors import UserError
from srl.recipes.workloads import WORKLOADS, workload


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_an_experiment_without_end(name):
    experiment = workload(name).check()
    stop = experiment.stop
    assert (stop.steps, stop.reward, stop.seconds) == (None, None, None)
    # Every update is a row, because rows are what is measured.
    train, actors = experiment.streams["main"], experiment.actors["main"]
    assert experiment.log_every == train.batch * train.rollout * actors.envs


@pytest.mark.parametrize(
    ("name", "envs", "rollout", "epochs", "minibatches"),
    [("w1", 32, 128, 4, 4), ("w2", 16, 128, 4, 4), ("w2e1", 16, 128, 1, 4), ("w3", 8, 256, 10, 32)],
)
def test_the_work_is_the_agreed_one(name, envs, rollout, epochs, minibatches):
    experiment = workload(name)
    actors, train, algorithm = (
        experiment.actors["main"],
        experiment.streams["main"],
        experiment.trainers["main"].algorithm,
    )
    assert actors.count * actors.ring * actors.envs == envs
    assert train.batch == actors.count * actors.ring
    assert (train.rollout, algorithm.epochs, algorithm.minibatches) == (rollout, epochs, minibatches)


def test_a_mistyped_workload_is_named():
    with pytest.raises(UserError, match="did you mean 'w2e1'"):
        workload("w2e")
