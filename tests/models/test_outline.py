"""The outline: what is said without torch is what is built."""

import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
from torch import nn

from srl.errors import UserError
from srl.models.config import GRU, LSTM, MLP, ActorCritic, Auto, Gaussian, NatureCNN, PopArt, ResNet
from srl.tree import Spec, leaves, spec_of, tree_map, zeros
from tests.models.conftest import Spaces

ROWS = 3
IMAGE = Spec((3, 37, 41), "uint8", low=0.0, high=255.0)
OBSERVATIONS = {
    "box": Spec((3, 2), "float32"),
    "scalar": Spec((), "float64"),
    "image": Spaces.image,
    "image, channels first": IMAGE,
    "discrete": Spaces.choice,
    "nested": {"far": {"0": Spaces.vector, "1": Spaces.bits}, "ram": Spec((5,), "uint8"), "turn": Spaces.choices},
    "with images": {"left": Spaces.image, "0": {"right": IMAGE, "speed": Spec((2,), "float64")}, "gear": Spaces.choice},
}
ACTIONS = {
    "discrete": Spaces.choice,
    "multi-discrete": Spaces.choices,
    "binary": Spaces.bits,
    "gaussian": Spaces.box,
    "nested": Spaces.nested,
}
VECTORS = {
    "mlp": MLP(hidden=(5, 7)),
    "mlp, layer norm": MLP(hidden=(6, 6), layer_norm=True),
    "no layers": MLP(hidden=()),
}
IMAGES = {"nature": NatureCNN(features=9), "resnet": ResNet(channels=(2, 3), features=6)}
MEMORIES = {"none": None, "lstm": LSTM(size=4), "gru": GRU(size=4)}
SMALL = Auto(vector=VECTORS["mlp"], image=IMAGES["resnet"])


def check(settings, obs, action, draw, mask=None):
    """Compare the outline with the module, and with what acting takes and gives."""
    outline = settings.outline(obs, action, mask)
    policy = settings.build(obs, action, mask)
    numbers = policy.module.state_dict().values()
    assert outline.weights == sum(leaf.numel() for leaf in numbers)
    assert outline.weight_bytes == sum(leaf.nbytes for leaf in numbers)
    assert (outline.state, outline.extras, outline.noise) == (policy.state, policy.extras, policy.noise)
    check_acting(outline, policy, obs, action, draw)


def check_acting(outline, policy, obs, action, draw):
    request = {
        "obs": draw.tree(obs, ROWS),
        "first": np.zeros(ROWS, bool),
        "state": zeros(outline.state, ROWS),
        "noise": draw.rng.random((ROWS, outline.noise), dtype=np.float32),
    }
    row = tree_map(lambda leaf: leaf[0], policy.act(request))
    assert spec_of(row.pop("state")) == outline.state
    assert [leaf.shape for _, leaf in leaves(row.pop("action"))] == [spec.shape for _, spec in leaves(action)]
    assert {name: Spec(leaf.shape, str(leaf.dtype)) for name, leaf in row.items()} == outline.extras


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_every_observation_and_memory(draw, obs, memory, shared):
    settings = ActorCritic(encoder=SMALL, memory=MEMORIES[memory], shared=shared)
    check(settings, OBSERVATIONS[obs], Spaces.choice, draw)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_encoder_chosen_from_the_observations(draw, vector, image, memory):
    settings = ActorCritic(encoder=Auto(vector=VECTORS[vector], image=IMAGES[image]), memory=MEMORIES[memory])
    check(settings, OBSERVATIONS["with images"], Spaces.choice, draw)


@pytest.mark.parametrize("obs", ["image", "image, channels first"])
@pytest.mark.parametrize("encoder", [*IMAGES.values(), *VECTORS.values()], ids=str)
def test_every_encoder_alone(draw, encoder, obs):
    check(ActorCritic(encoder=encoder), OBSERVATIONS[obs], Spaces.choice, draw)


@pytest.mark.parametrize("popart", [None, PopArt()], ids=["plain", "popart"])
@pytest.mark.parametrize("normalise", [False, True], ids=["raw", "normalised"])
@pytest.mark.parametrize("gaussian", [Gaussian(), Gaussian(state_dependent_std=True), Gaussian(squash=True)], ids=str)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", ["box", "scalar", "nested"])
def test_every_action_and_statistic(draw, obs, action, gaussian, normalise, popart):
    settings = ActorCritic(encoder=SMALL, gaussian=gaussian, normalise_obs=normalise, popart=popart)
    check(settings, OBSERVATIONS[obs], ACTIONS[action], draw)


@pytest.mark.parametrize("side", range(36, 54))
def test_images_of_every_size(draw, side):
    for encoder in (NatureCNN(features=2), ResNet(channels=(1, 1, 1), features=2)):
        check(ActorCritic(encoder=encoder, shared=True), Spec((side, side + 3, 1), "uint8"), Spaces.choice, draw)


def test_the_sizes_of_the_defaults(draw):
    check(ActorCritic(), Spaces.vector, Spaces.choice, draw)
    check(ActorCritic(memory=LSTM()), {"x": Spaces.vector, "image": Spaces.image}, Spaces.nested, draw)


def test_a_known_size():
    outline = ActorCritic(normalise_obs=True).outline(Spec((4,), "float32"), Spec((), "int64", "discrete", (2,), (0,)))
    trunk = 4 * 64 + 64 + 64 * 64 + 64
    statistics = 4 + 4 + 1
    floats = 2 * trunk + 64 * 2 + 2 + 64 + 1
    assert outline.weights == floats + statistics
    assert outline.weight_bytes == 4 * floats + 8 * statistics


def test_masks_add_no_weights(spaces):
    mask = Spec((4,), "bool")
    assert ActorCritic().outline(spaces.vector, spaces.choice, mask) == ActorCritic().outline(
        spaces.vector, spaces.choice
    )


class Flat(nn.Module):
    def __init__(self, obs_spec):
        super().__init__()
        self.features = obs_spec.size

    def forward(self, obs):
        return obs.float().flatten(1)


@dataclass(frozen=True, kw_only=True)
class Own:
    def build(self, obs_spec):
        return Flat(obs_spec)


@dataclass(frozen=True, kw_only=True)
class Wider(MLP):
    def build(self, obs_spec):
        return Flat(obs_spec)


@dataclass(frozen=True, kw_only=True)
class OwnMemory(GRU):
    pass


@pytest.mark.parametrize(
    "encoder", [Own(), Wider(), f"{__name__}:Flat", Auto(vector=Own()), Auto(vector=f"{__name__}:Flat")], ids=str
)
def test_the_size_of_what_is_not_ours_is_unknown(spaces, encoder):
    settings = ActorCritic(encoder=encoder, memory=GRU(size=4))
    outline = settings.outline(spaces.vector, spaces.choices)
    assert outline.weights is outline.weight_bytes is None
    assert outline.noise == 4
    policy = settings.build(spaces.vector, spaces.choices)
    assert (outline.state, outline.extras, outline.noise) == (policy.state, policy.extras, policy.noise)


def test_the_size_of_ones_own_memory_is_unknown_but_its_state_is_not(spaces, draw):
    settings = ActorCritic(memory=OwnMemory(size=4))
    outline = settings.outline(spaces.vector, spaces.choice)
    assert outline.weights is outline.weight_bytes is None
    check_acting(outline, settings.build(spaces.vector, spaces.choice), spaces.vector, spaces.choice, draw)


@pytest.mark.parametrize(
    ("settings", "obs", "action", "mask"),
    [
        (ActorCritic(encoder=NatureCNN()), Spec((35, 40, 3), "uint8"), Spaces.choice, None),
        (ActorCritic(encoder=ResNet()), Spaces.vector, Spaces.choice, None),
        (ActorCritic(), {}, Spaces.choice, None),
        (ActorCritic(), Spaces.vector, {}, None),
        (ActorCritic(), Spaces.vector, Spec((0,), "float32"), None),
        (ActorCritic(), Spaces.vector, Spec((2,), "int32"), None),
        (ActorCritic(), Spaces.vector, Spaces.choice, Spec((3,), "bool")),
    ],
    ids=["small image", "no image", "no observation", "no action", "empty action", "whole numbers", "wrong mask"],
)
def test_what_cannot_be_built_is_refused_in_the_same_words(settings, obs, action, mask):
    with pytest.raises(UserError) as building:
        settings.build(obs, action, mask)
    with pytest.raises(UserError) as outlining:
        settings.outline(obs, action, mask)
    assert str(outlining.value) == str(building.value)


def test_no_torch_is_needed():
    code = """
import sys
from srl.models.config import LSTM, ActorCritic, PopArt
from srl.tree import Spec

obs = {"x": Spec((3,), "float32"), "image": Spec((40, 40, 3), "uint8")}
settings = ActorCritic(memory=LSTM(), normalise_obs=True, popart=PopArt())
assert settings.outline(obs, Spec((), "int64", "discrete", (2,), (0,))).weights > 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
