"""Encoders: every kind of observation, and those the user brings."""

import dataclasses
import textwrap

import pytest
import torch
from torch import nn

from srl.errors import UserError
from srl.models.config import MLP, Auto, NatureCNN, ResNet
from srl.models.encoders import build_encoder
from srl.tree import Spec


@pytest.mark.parametrize("space", ["vector", "image", "choice", "choices", "bits", "nested"])
def test_auto_takes_any_observation(spaces, draw, space):
    spec = getattr(spaces, space)
    encoder = build_encoder(Auto(), spec)
    features = encoder(draw.tensors(spec, 5))
    assert features.shape == (5, encoder.features)
    assert features.dtype == torch.float32


def test_auto_encodes_images_apart_and_the_rest_together(spaces, draw):
    spec = {"camera": {"left": spaces.image, "right": spaces.image}, "speed": spaces.vector, "gear": spaces.choice}
    encoder = build_encoder(Auto(vector=MLP(hidden=(7,)), image=ResNet(channels=(4,), features=9)), spec)
    obs = draw.tensors(spec, 2)
    features = encoder(obs)
    assert features.shape == (2, 9 + 9 + 7)
    obs["camera"]["right"] = torch.zeros_like(obs["camera"]["right"])
    changed = (encoder(obs) != features).any(0)
    assert [part.any().item() for part in changed.split((9, 9, 7))] == [False, True, False]


def test_the_order_of_keys_does_not_matter(spaces, draw):
    spec = {"a": spaces.vector, "b": spaces.choice, "c": spaces.image}
    encoder = build_encoder(Auto(), spec)
    obs = draw.tensors(spec, 3)
    assert torch.equal(encoder(obs), encoder(dict(reversed(obs.items()))))


def test_leaves_are_flattened_scaled_and_one_hot(spaces):
    spec = {
        "scalar": Spec((), "float64"),
        "plane": Spec((2, 2), "float32"),
        "ram": Spec((2,), "uint8"),
        "bits": Spec((2,), "int8", "binary"),
        "pair": Spec((2,), "int64", "discrete", n=(2, 3), start=(0, 5)),
    }
    obs = {
        "scalar": torch.tensor([7.0], dtype=torch.float64),
        "plane": torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]),
        "ram": torch.tensor([[0, 255]], dtype=torch.uint8),
        "bits": torch.tensor([[0, 1]], dtype=torch.int8),
        "pair": torch.tensor([[1, 2]]),
    }
    features = build_encoder(MLP(hidden=()), spec)(obs)
    assert features.tolist() == [[7, 1, 2, 3, 4, 0, 1, 0, 1, 0, 1, 0, 0, 1]]


def test_mlp_has_the_layers_asked_for(spaces):
    encoder = build_encoder(MLP(hidden=(8, 6), activation="silu", layer_norm=True), spaces.vector)
    assert [type(part) for layer in encoder.layers for part in layer] == [nn.Linear, nn.LayerNorm] * 2
    linear = encoder.layers[0][0]
    assert torch.allclose(linear.weight.T @ linear.weight, 2 * torch.eye(3), atol=1e-5)
    assert not linear.bias.any()


@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer norm"])
@pytest.mark.parametrize(
    ("name", "activation"),
    [("tanh", nn.Tanh()), ("relu", nn.ReLU()), ("elu", nn.ELU()), ("gelu", nn.GELU()), ("silu", nn.SiLU())],
)
def test_mlp_is_its_layers_each_with_its_activation(spaces, draw, name, activation, layer_norm):
    encoder = build_encoder(MLP(hidden=(8, 6), activation=name, layer_norm=layer_norm), spaces.vector)
    obs = draw.tensors(spaces.vector, 5)
    first, second = encoder.layers
    # tanh is by a sigmoid, equal to seven digits.
    torch.testing.assert_close(encoder(obs), activation(second(activation(first(obs)))), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [NatureCNN(features=10), ResNet(channels=(4, 8), features=10)])
def test_images_may_have_channels_first_or_last(draw, settings):
    last = Spec((40, 44, 3), "uint8")
    first = Spec((3, 40, 44), "uint8")
    a, b = build_encoder(settings, last), build_encoder(settings, first)
    b.load_state_dict(a.state_dict())
    image = draw.tensors(last, 2)
    assert torch.equal(a(image), b(image.permute(0, 3, 1, 2)))


def test_resnet_takes_tiny_images_and_nature_cnn_says_so(draw):
    spec = Spec((7, 7, 3), "uint8")
    assert build_encoder(ResNet(), spec)(draw.tensors(spec, 2)).shape == (2, 256)
    with pytest.raises(UserError, match=r"at least 36 x 36, got 7 x 7; use ResNet\(\)"):
        build_encoder(Auto(), spec)


def test_image_encoders_refuse_other_observations(spaces):
    with pytest.raises(UserError, match="NatureCNN takes one uint8 image"):
        build_encoder(NatureCNN(), spaces.vector)
    with pytest.raises(UserError, match="ResNet takes one uint8 image"):
        build_encoder(ResNet(), {"a": spaces.image, "b": spaces.image})


class Mean(nn.Module):
    """A user's module: the mean of each row."""

    def __init__(self, features: int = 1) -> None:
        super().__init__()
        self.features = features

    def forward(self, obs):
        return obs.mean(1, keepdim=True)


@dataclasses.dataclass(frozen=True)
class MeanSettings:
    """A user's settings."""

    features: int = 1

    def build(self, obs_spec):
        """The user's module."""
        return Mean(self.features)


def test_settings_of_the_user(spaces, draw):
    encoder = build_encoder(MeanSettings(), spaces.vector)
    assert encoder(draw.tensors(spaces.vector, 4)).shape == (4, 1)


def test_wrong_features_are_found_when_building(spaces):
    with pytest.raises(UserError, match=r"gives shape \(2, 1\) for 2 rows; its 'features' promise \(2, 5\)"):
        build_encoder(MeanSettings(features=5), spaces.vector)


def test_import_strings(spaces, draw, tmp_path, monkeypatch):
    source = """
        from torch import nn

        class Wide(nn.Linear):
            def __init__(self, obs_spec):
                super().__init__(obs_spec.size, 6)
                self.features = 6

        class Nameless(nn.Identity):
            def __init__(self, obs_spec):
                super().__init__()
    """
    (tmp_path / "my_encoders.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(tmp_path)
    assert build_encoder("my_encoders:Wide", spaces.vector)(draw.tensors(spaces.vector, 4)).shape == (4, 6)
    with pytest.raises(UserError, match="no 'Wild' to use as encoder; did you mean 'Wide'"):
        build_encoder("my_encoders:Wild", spaces.vector)
    with pytest.raises(UserError, match="cannot import the encoder 'no_such_module:Wide'"):
        build_encoder("no_such_module:Wide", spaces.vector)
    with pytest.raises(UserError, match="int attribute 'features'"):
        build_encoder("my_encoders:Nameless", spaces.vector)
