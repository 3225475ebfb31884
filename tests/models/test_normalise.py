"""Running statistics: against numpy over all data, and values that survive their change."""

import numpy as np
import pytest
import torch

from srl.models.config import PopArt
from srl.models.normalise import CLIP, ObservationNormaliser, PopArtHead, RunningMoments, ValueHead
from srl.tree import Spec


def test_moments_equal_numpy_over_all_rows(draw):
    rows = draw.rng.normal(1e4, 3.0, (1_000, 2, 3)).astype(np.float32)
    moments = RunningMoments((2, 3))
    for part in np.split(rows, [1, 8, 500, 500, 999]):
        moments.update(torch.from_numpy(part), "x")
    np.testing.assert_allclose(moments.mean, rows.mean(0, dtype=np.float64), rtol=1e-12)
    np.testing.assert_allclose(moments.var, rows.var(0, dtype=np.float64), rtol=1e-9)
    assert moments.count == 1_000
    normal = moments(torch.from_numpy(rows))
    torch.testing.assert_close(normal.mean(0), torch.zeros(2, 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(normal.std(0), torch.ones(2, 3), atol=1e-2, rtol=0)


def test_before_any_data_rows_pass_unchanged_but_clipped():
    rows = torch.tensor([[0.5], [99.0]])
    assert RunningMoments((1,))(rows).tolist() == [[0.5], [CLIP]]


def test_constant_observations_become_zero():
    moments = RunningMoments((1,))
    moments.update(torch.full((7, 1), 0.1), "x")
    assert not moments(torch.full((1, 1), 0.1)).any()


def test_only_float_leaves_are_normalised(spaces, draw):
    spec = {"a": {"x": spaces.vector}, "d": Spec((), "float64"), "image": spaces.image, "choice": spaces.choice}
    normaliser = ObservationNormaliser(spec)
    obs = draw.tensors(spec, 50)
    normaliser.update(obs)
    normal = normaliser(obs)
    assert normal["image"] is obs["image"]
    assert normal["choice"] is obs["choice"]
    assert normal["d"].dtype == torch.float32
    for leaf in (normal["a"]["x"], normal["d"]):
        torch.testing.assert_close(leaf.mean(0), torch.zeros(leaf.shape[1:]), atol=1e-5, rtol=0)
    assert len(normaliser.state_dict()) == 2 * 3


def test_what_is_not_finite_is_refused_by_name(spaces):
    normaliser = ObservationNormaliser({"sensor": spaces.vector})
    with pytest.raises(FloatingPointError, match="'sensor' is not finite"):
        normaliser.update({"sensor": torch.tensor([[0.0, torch.inf, 0.0]])})
    assert normaliser.parts[0].count == 0


def test_popart_keeps_every_value_through_every_update():
    head, features = PopArtHead(8, 1.0, PopArt(rate=0.1)), torch.randn(100, 8)
    for scale, mean in ((1.0, 0.0), (100.0, 1_000.0), (0.01, -5.0), (0.0, 0.0)):
        before = head(features)
        head.update(torch.randn(64) * scale + mean)
        torch.testing.assert_close(head(features), before, atol=1e-3, rtol=1e-5)


def test_popart_statistics_start_unbiased_and_then_follow():
    head = PopArtHead(1, 1.0, PopArt(rate=0.5))
    batches = [torch.randn(4, 5) * 3 + 7 for _ in range(2)]
    for batch in batches:
        head.update(batch)
    both = torch.stack(batches).double()
    torch.testing.assert_close(head.mean, both.mean())
    torch.testing.assert_close(head.scale, both.std(correction=0).float())
    for _ in range(30):
        head.update(batches[0])
    torch.testing.assert_close(head.mean, batches[0].double().mean())


def test_popart_learns_in_units_of_its_scale():
    head = PopArtHead(1, 1.0, PopArt())
    head.update(torch.tensor([-1_000.0, 3_000.0]))
    assert head.scale == pytest.approx(2_000)
    assert head.mean == pytest.approx(1_000)
    with pytest.raises(FloatingPointError, match="targets"):
        head.update(torch.tensor([torch.nan]))


def test_the_plain_value_head_has_no_statistics():
    head, features = ValueHead(3, 1.0), torch.randn(4, 3)
    before = head(features)
    head.update(torch.tensor([1e6]))
    assert torch.equal(head(features), before)
    assert head.scale == 1
    assert head.linear.weight.norm().item() == pytest.approx(1)
