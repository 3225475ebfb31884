"""Vector environments that do not keep their word, and errors that say where they happened."""

import numpy as np
import pytest

from srl.envs.base import make
from srl.envs.fake import NativeVector
from srl.errors import UserError

from .arrays import arrays


def stepped(batch, steps):
    out = arrays(batch)
    batch.reset(0, out)
    for _ in range(steps):
        batch.step(np.zeros(batch.size, int), out)
    return out


def test_same_step_without_final_observations_is_refused_when_it_matters():
    batch = make(NativeVector, 2, {"mode": "SameStep", "lengths": (3,), "final_obs": False})
    stepped(batch, 2)
    with pytest.raises(UserError, match=r"ended without info\['final_obs'\].* NEXT_STEP or DISABLED"):
        stepped(batch, 3)


@pytest.mark.parametrize("mode", [None, "Sometimes"])
def test_a_mode_that_is_not_said_is_asked_for(mode):
    def vector(num_envs):
        made = NativeVector(num_envs)
        made.metadata = {"autoreset_mode": mode}
        return made

    with pytest.raises(
        UserError, match=r"metadata\['autoreset_mode'\] is .*; set it to a gymnasium.vector.AutoresetMode"
    ):
        make(vector, 2)


def test_an_end_within_a_reset_step_is_refused():
    """A SAME_STEP environment that calls itself NEXT_STEP; with episodes of one step it shows at once."""

    def vector(num_envs):
        made = NativeVector(num_envs, "SameStep", lengths=(1,))
        made.metadata = {"autoreset_mode": "NextStep"}
        return made

    with pytest.raises(UserError, match="set metadata\\['autoreset_mode'\\] to SAME_STEP"):
        stepped(make(vector, 2), 2)


def test_reward_of_a_reset_row_is_nothing():
    class Pays(NativeVector):
        def step(self, actions):
            obs, reward, *rest = super().step(actions)
            return obs, reward + 1000, *rest

    out = stepped(make(Pays, 2, {"lengths": (2,)}), 3)
    np.testing.assert_array_equal(out["reward"], [0, 0])


def test_an_exception_names_the_vector_environment():
    class Breaks(NativeVector):
        def step(self, actions):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken") as caught:
        stepped(make(Breaks, 2), 1)
    assert "in the vector environment " in caught.value.__notes__[0]


def test_a_reset_begins_everything_again():
    batch = make(NativeVector, 2, {"lengths": (2,)})
    for _ in range(2):
        np.testing.assert_array_equal(stepped(batch, 2)["obs"], [[0, 2], [0, 2]])
