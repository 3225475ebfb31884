"""What is shown is what would be started, and nothing is loaded or started to show it."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest

from srl.envs.fake import Counting
from srl.experiment import Policies
from srl.launchers import plan
from srl.launchers.shapes import describe
from srl.models.config import ActorCritic, Auto, ResNet
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from srl.settings import to_yaml
from srl.show import drawn

# Its images are too small for the default encoder.
MODEL = ActorCritic(encoder=Auto(image=ResNet(channels=(4,), features=8)), normalise_obs=True)
NESTED = replace(ppo("srl.envs.fake:Nested", actors=1), policies={"main": Policies(model=MODEL)})
EXPERIMENTS = {
    "ppo": ppo(),
    "many": impala(actors=2, ring=2, envs=16, max_lag=2, act="shm", policy_workers=3, eval_every=1000),
    "recurrent": ppo("srl.envs.fake:Recall", memory="lstm"),
    "gru": ppo("srl.envs.fake:Recall", memory="gru"),
    "nested": NESTED,
    "masked": ppo("srl.envs.fake:Masked", act="shm"),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_memory_shown_is_the_memory_a_run_takes(name):
    experiment = EXPERIMENTS[name]
    needs = plan.needs_of(experiment, describe(experiment))
    text = drawn(experiment)
    assert f"{sum(need.nbytes for need in needs) / 2**20:,.2f} MiB" in text
    for need in needs:
        if need.name.startswith("train/") and need.nbytes:
            assert re.search(rf"{need.name} +{need.nbytes / 2**20:,.2f} MiB", text)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_weights_shown_are_those_of_the_built_model(name):
    experiment = EXPERIMENTS[name]
    weights = sum(spec.size for spec in describe(experiment)["main"].params.values())
    assert f"{weights:,} weights" in drawn(experiment)


def test_environments_with_processes_of_their_own_are_shown():
    assert "32 environments CartPole-v1, each in a process of its own" in drawn(ppo(isolate=True))
    assert "process of its own" not in drawn(ppo())


def test_the_graph_is_drawn_with_every_setting():
    experiment = EXPERIMENTS["many"]
    text = drawn(experiment)
    for part in ("CartPole-v1", "actors main", "actors eval", "IMPALA", "shm", "3 policy", "params"):
        assert part in text
    assert f"{len(plan.tasks_of(experiment))} workers" in text
    assert text.endswith(to_yaml(experiment).rstrip())


def test_an_environment_that_is_a_callable_is_shown():
    assert "srl.envs.fake:Counting" in drawn(ppo(partial(Counting, lengths=(3,))))


def test_showing_loads_no_torch():
    code = """
import sys
from srl.cli import main
assert main(["show", "ppo", "--memory", "lstm", "--actors", "2", "--normalise"]) == 0
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "CartPole-v1" in done.stdout
