"""The loop over single environments: seeds, and errors that say where they happened."""

import numpy as np
import pytest
from gymnasium import spaces

from srl.envs.base import make
from srl.envs.fake import Counting, Raises
from srl.envs.gym import seeds
from srl.errors import UserError

from .arrays import arrays


def test_seeds_do_not_depend_on_how_many_there_are():
    assert seeds(3, 8)[:4] == seeds(3, 4)
    assert seeds(3, 4) != seeds(4, 4)
    many = seeds(0, 20_000)
    assert len(set(many)) == 20_000
    assert all(0 <= one < 2**31 for one in many)


def test_an_exception_names_the_environment():
    made = []

    def build():
        made.append(Raises(after=2 if len(made) == 1 else 100))
        return made[-1]

    batch = make(build, 3)
    out = arrays(batch)
    batch.reset(0, out)
    batch.step(np.zeros(3, int), out)
    with pytest.raises(RuntimeError, match="told to raise") as caught:
        batch.step(np.zeros(3, int), out)
    assert caught.value.__notes__[0].startswith("in environment 1 of 3 of ")


def test_an_exception_in_a_reset_names_the_environment():
    class Stuck(Counting):
        def reset(self, *, seed=None, options=None):
            raise RuntimeError("stuck")

    with pytest.raises(RuntimeError, match="stuck") as caught:
        make(Stuck, 2)
    assert "in environment 0 of 2 of " in caught.value.__notes__[0]


def test_an_observation_of_the_wrong_shape_names_its_environment():
    class Grows(Counting):
        def step(self, action):
            _, *rest = super().step(action)
            return np.zeros(3, np.float32), *rest

    batch = make(Grows, 2)
    out = arrays(batch)
    batch.reset(0, out)
    with pytest.raises(UserError, match=r"Grows: observation \(root\) has shape \(3,\)") as caught:
        batch.step(np.zeros(2, int), out)
    assert "in environment 0 of 2 of " in caught.value.__notes__[0]


def test_environments_of_different_spaces_are_refused():
    made = []

    def build():
        env = Counting()
        env.action_space = spaces.Discrete(2 + len(made))
        made.append(env)
        return env

    with pytest.raises(UserError, match="environment 1 has other spaces than environment 0"):
        make(build, 2)


def test_a_reset_begins_everything_again():
    batch = make(Counting, 2, {"lengths": (2,)})
    out = arrays(batch)
    for _ in range(2):
        batch.reset(0, out)
        np.testing.assert_array_equal(out["obs"], [[0, 0], [0, 0]])
        batch.step(np.zeros(2, int), out)
        batch.step(np.zeros(2, int), out)
        assert out["terminated"].all()
