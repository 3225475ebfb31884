"""The weight update and the reading of stats."""

import copy
import io
import subprocess
import sys

import pytest
import torch
from torch import nn

from srl.algorithms.base import Update, linear, mean_of, read_stats, require_rows
from srl.errors import UserError


def module():
    net = nn.Linear(2, 1, bias=False)
    nn.init.ones_(net.weight)
    return net


def test_linear():
    assert linear(1.0, None, 0.5) == 1.0
    assert linear(1.0, 0.0, 0.25) == 0.75


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_update_equals_torch_with_clipped_gradient(name):
    net, other = module(), module()
    update = Update(net, name, max_grad_norm=0.5)
    kinds = {"adam": (torch.optim.Adam, {}), "rmsprop": (torch.optim.RMSprop, {"alpha": 0.99})}
    kind, options = kinds[name]
    reference = kind(other.parameters(), 0.1, eps=1e-5, **options)
    x = torch.tensor([[3.0, 4.0]])
    for _ in range(3):
        assert update.step({"loss": net(x).sum()}, 0.1)["grad_norm"] == 5.0
        reference.zero_grad()
        other(x).sum().backward()
        other.weight.grad *= 0.1
        reference.step()
    torch.testing.assert_close(net.weight, other.weight)
    assert update.count == 3


def test_without_limit_the_gradient_is_left_alone():
    net = module()
    loss = net(torch.tensor([[30.0, 40.0]])).sum()
    assert Update(net, "adam", None).step({"loss": loss}, 0.1)["grad_norm"] == 50.0
    assert net.weight.grad.tolist() == [[30.0, 40.0]]


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_update_goes_on_from_a_file(name):
    net, x = module(), torch.tensor([[1.0, 2.0]])
    update = Update(net, name, 0.5)
    update.step({"loss": net(x).square().sum()}, 0.1)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "update": update.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    net2 = module()
    update2 = Update(net2, name, 0.5)
    net2.load_state_dict(saved["net"])
    update2.load_state_dict(saved["update"])
    for n, u in ((net, update), (net2, update2)):
        u.step({"loss": n(x).square().sum()}, 0.1)
    assert torch.equal(net.weight, net2.weight)
    assert update2.count == 2


def test_adam_goes_on_from_what_torch_has_kept():
    net, other, x = module(), module(), torch.tensor([[1.0, 2.0]])
    theirs = torch.optim.Adam(other.parameters(), 0.1, eps=1e-5, fused=True)
    ours = Update(net, "adam", None)
    for at in range(2):
        theirs.zero_grad()
        other(x).square().sum().backward()
        theirs.step()
        if at == 0:
            ours.load_state_dict({"optimizer": copy.deepcopy(theirs.state_dict()), "count": 1})
            net.load_state_dict(other.state_dict())
    ours.step({"loss": net(x).square().sum()}, 0.1)
    assert torch.equal(net.weight, other.weight)


def test_adam_refuses_the_state_of_other_parameters():
    update = Update(module(), "adam", None)
    kept = {"step": torch.ones(()), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}
    with pytest.raises(ValueError, match=r"averages of parameter 0 have the shape \(3,\), not \(1, 2\)"):
        update.load_state_dict({"optimizer": {"state": {0: kept}}, "count": 1})


def test_adam_leaves_a_parameter_without_gradient_alone():
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    update = Update(nn.ParameterList([unused, used]), "adam", None)
    update.step({"loss": used.sum()}, 0.1)
    assert unused.item() == 1.0
    assert used.item() < 1.0


def test_learning_without_a_compiler_does_not_import_one():
    code = "import sys, srl.algorithms.ppo_learner as p, torch; net = torch.nn.Linear(1, 1);"
    code += "p.Update(net, 'adam', 0.5).step({'loss': net(torch.ones(1, 1)).sum()}, 0.1);"
    code += "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def batch(**changes):
    rows = {name: torch.zeros(2, 1) for name in ("reward", "value", "log_prob")}
    return rows | {"valid": torch.tensor([[True], [False]])} | changes


def test_stats_are_means():
    updates = [{"a": torch.tensor(1.0), "b": torch.tensor(0.0)}, {"a": torch.tensor(2.0), "b": torch.tensor(1.0)}]
    assert read_stats("X", updates, 2, batch()) == {"a": 1.5, "b": 0.5}
    assert mean_of([{"a": 1.0}, {"a": 2.0}]) == {"a": 1.5}


def test_what_is_not_finite_is_named_with_its_update():
    updates = [{"loss": torch.tensor(1.0)}, {"loss": torch.tensor(torch.nan)}, {"loss": torch.tensor(torch.nan)}]
    with pytest.raises(FloatingPointError, match=r"^PPO: loss is nan in update 9$"):
        read_stats("PPO", updates, 10, batch())
    bad = batch(reward=torch.tensor([[torch.inf], [0.0]]), value=torch.tensor([[0.0], [torch.nan]]))
    with pytest.raises(FloatingPointError, match="update 9; the batch itself has a reward that is not finite"):
        read_stats("PPO", updates, 10, bad)


def test_a_batch_without_valid_rows_is_refused():
    with pytest.raises(UserError, match="no valid row"):
        require_rows({"valid": torch.zeros(1, 1, dtype=torch.bool)})
