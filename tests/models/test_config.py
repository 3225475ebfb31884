"""Settings: torch-free, comparable, strict."""

import dataclasses
import subprocess
import sys

import pytest

from srl.errors import UserError
from srl.models.config import GRU, LSTM, MLP, ActorCritic, Auto, Gaussian, NatureCNN, PopArt, ResNet


def test_settings_do_not_load_torch():
    code = "import sys, srl.models.config as c; c.ActorCritic(memory=c.LSTM()); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_settings_are_values():
    one = ActorCritic(encoder=Auto(vector=MLP(hidden=(8,))), memory=GRU(size=4), popart=PopArt())
    assert one == dataclasses.replace(one)
    assert hash(one) == hash(dataclasses.replace(one))
    assert one != dataclasses.replace(one, memory=LSTM(size=4))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: MLP(hidden=(64, 0)), "MLP.hidden has 0"),
        (lambda: MLP(hidden=(2.5,)), "MLP.hidden has 2.5"),
        (lambda: MLP(activation="rleu"), "did you mean 'relu'"),
        (lambda: NatureCNN(features=0), "NatureCNN.features"),
        (lambda: ResNet(channels=()), "ResNet.channels is empty"),
        (lambda: LSTM(size=-1), "LSTM.size"),
        (lambda: GRU(size=True), "GRU.size"),
        (lambda: Gaussian(init_log_std=3.0), "min_log_std <= init_log_std <= max_log_std"),
        (lambda: Gaussian(max_log_std=float("inf")), "finite"),
        (lambda: Gaussian(init_log_std=float("nan")), "finite"),
        (lambda: PopArt(rate=0.0), "PopArt.rate"),
        (lambda: PopArt(min_scale=0.0), "PopArt.min_scale"),
        (lambda: ActorCritic(encoder="my_module"), "package.module:Class"),
        (lambda: ActorCritic(encoder=MLP), "ActorCritic.encoder"),
        (lambda: ActorCritic(encoder=7), "ActorCritic.encoder is 7"),
        (lambda: Auto(image=None), "Auto.image"),
        (lambda: ActorCritic(memory="lstm"), "ActorCritic.memory"),
        (lambda: ActorCritic(policy_gain=-1.0), "ActorCritic.policy_gain"),
    ],
)
def test_nonsense_is_refused(make, says):
    with pytest.raises(UserError, match=says):
        make()
