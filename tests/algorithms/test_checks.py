"""Settings that make no sense are refused in one clear line, without loading torch."""

import subprocess
import sys

import pytest

from srl.algorithms import IMPALA, PPO
from srl.errors import UserError


@pytest.mark.parametrize(
    ("settings", "changes", "message"),
    [
        (PPO, {"learning_rate": 0.0}, "PPO: learning_rate must be a number above 0, not 0.0"),
        (PPO, {"learning_rate": "3e-4"}, "PPO: learning_rate must be a number above 0, not '3e-4'"),
        (PPO, {"gamma": 1.1}, "PPO: gamma must be a number from 0 to 1, not 1.1"),
        (PPO, {"lam": float("nan")}, "PPO: lam must be a number from 0 to 1, not nan"),
        (PPO, {"epochs": 2.0}, "PPO: epochs must be a whole number of at least 1, not 2.0"),
        (PPO, {"minibatches": True}, "PPO: minibatches must be a whole number of at least 1, not True"),
        (PPO, {"dual_clip": 1.0}, "PPO: dual_clip must be a number above 1, or None, not 1.0"),
        (PPO, {"value_loss": "l1"}, "PPO: value_loss must be one of 'mse', 'huber', not 'l1'"),
        (PPO, {"anneal": 1}, "PPO: anneal must be true or false, not 1"),
        (IMPALA, {"optimizer": "sgd"}, "IMPALA: optimizer must be one of 'adam', 'rmsprop', not 'sgd'"),
        (IMPALA, {"rho_bar": 0}, "IMPALA: rho_bar must be a number above 0, not 0"),
        (IMPALA, {"entropy_end": -1.0}, "IMPALA: entropy_end must be a number of at least 0, or None, not -1.0"),
    ],
)
def test_a_bad_value_is_named(settings, changes, message):
    with pytest.raises(UserError) as error:
        settings(**changes)
    assert str(error.value) == message


def test_what_is_optional_may_be_none():
    PPO(value_clip=None, dual_clip=None, target_kl=None, entropy_end=None, max_grad_norm=None)
    IMPALA(entropy_end=None, max_grad_norm=None)


def test_settings_load_no_torch():
    code = "import sys; from srl.algorithms import IMPALA, PPO; PPO(); IMPALA(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
