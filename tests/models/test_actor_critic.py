"""The actor-critic policy: acting and evaluating are the same function, for every space and memory."""

import numpy as np
import pytest
import torch

from srl.models.config import GRU, LSTM, MLP, ActorCritic, Auto, Gaussian, PopArt, ResNet
from srl.tree import Spec, index, leaves, tree_map, zeros

SMALL = Auto(vector=MLP(hidden=(16,)), image=ResNet(channels=(4,), features=8))
MEMORIES = {"none": None, "lstm": LSTM(size=6), "gru": GRU(size=6)}
T, B = 6, 5


@pytest.fixture(params=MEMORIES, name="memory")
def memory_kind(request):
    return MEMORIES[request.param]


def rollout(policy, draw, obs_spec, action_spec, mask=None):
    """Act T times on random observations with resets; the segment as the trainer sees it."""
    obs = draw.tree(obs_spec, T, B)
    first = draw.rng.random((T, B)) < 0.3
    state = tree_map(lambda leaf: draw.rng.normal(size=leaf.shape).astype("f"), zeros(policy.state, B))
    start, replies = state, []
    for t in range(T):
        noise = draw.rng.random((B, policy.noise), dtype=np.float32)
        request = {"obs": tree_map(lambda leaf, t=t: leaf[t], obs), "first": first[t], "state": state, "noise": noise}
        if mask is not None:
            request["mask"] = tree_map(lambda leaf, t=t: leaf[t], mask)
        replies.append(policy.act(request))
        state = replies[-1]["state"]
    action = tree_map(lambda _, *all_t: np.stack(all_t), action_spec, *(reply["action"] for reply in replies))
    log_prob, value = (np.stack([reply[name] for reply in replies]) for name in ("log_prob", "value"))
    data = {"obs": obs, "action": action, "first": first, "state": start}
    if mask is not None:
        data["mask"] = mask
    segment = tree_map(torch.from_numpy, data)
    return segment, torch.from_numpy(log_prob), torch.from_numpy(value)


def evaluate(policy, segment):
    return policy.evaluate(segment["obs"], segment["action"], segment.get("mask"), segment["first"], segment["state"])


# What torch's compiler imports warns of torch's own past.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(("space", "kind"), [("choice", "none"), ("nested", "lstm")])
def test_compiled_acting_gives_what_eager_acting_gives(spaces, draw, space, kind):
    obs_spec, action_spec = {"x": spaces.vector, "n": spaces.choices}, getattr(spaces, space)
    settings = ActorCritic(encoder=SMALL, memory=MEMORIES[kind], policy_gain=1.0)
    mask_spec, mask = draw.mask(action_spec, B)
    eager, compiled = (settings.build(obs_spec, action_spec, mask_spec, seed=1) for _ in range(2))
    compiled.compile_act()
    # Whatever is asked next, the code that answers is the code for it, though the network is not looked at again.
    for rows, explore in ((B, True), (B, False), (B - 1, True), (B, True)):
        noise = {"noise": draw.rng.random((rows, eager.noise), dtype=np.float32)} if explore else {}
        state = tree_map(lambda leaf: draw.rng.normal(size=leaf.shape).astype("f"), zeros(eager.state, rows))
        request = {"obs": draw.tree(obs_spec, rows), "first": draw.rng.random(rows) < 0.3, "state": state}
        request["mask"] = index(mask, slice(rows))
        expected, got = eager.act(request | noise), compiled.act(request | noise)
        assert list(leaves(expected))
        tree_map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), expected, got)
    # It goes on with weights that are written in place, as a reader does.
    with torch.no_grad():
        for policy in (eager, compiled):
            for parameter in policy.module.parameters():
                parameter.mul_(0.5)
    expected, got = eager.act(request), compiled.act(request)
    np.testing.assert_allclose(expected["value"], got["value"], rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_policies_that_are_compiled_in_one_process_are_not_taken_for_each_other(spaces, draw):
    for activation in ("tanh", "relu"):
        settings = ActorCritic(encoder=MLP(hidden=(8,), activation=activation), policy_gain=1.0)
        eager, compiled = (settings.build(spaces.vector, spaces.choice, seed=1) for _ in range(2))
        compiled.compile_act()
        for rows in (B, 2 * B, 1):
            request = {"obs": draw.tree(spaces.vector, rows), "first": np.ones(rows, bool)}
            expected, got = eager.act(request), compiled.act(request)
            np.testing.assert_allclose(expected["value"], got["value"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("space", ["choice", "choices", "bits", "box", "nested"])
@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_evaluate_agrees_with_act(spaces, draw, memory, shared, space):
    obs_spec = {"x": spaces.vector, "n": spaces.choices}
    action_spec = getattr(spaces, space)
    policy = ActorCritic(encoder=SMALL, memory=memory, shared=shared, policy_gain=1.0).build(obs_spec, action_spec)
    segment, log_prob, value = rollout(policy, draw, obs_spec, action_spec)
    evaluation = evaluate(policy, segment)
    torch.testing.assert_close(evaluation.log_prob, log_prob, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(evaluation.value, value, atol=1e-5, rtol=1e-4)
    assert evaluation.entropy.shape == (T, B)
    alone = policy.value(segment["obs"], segment["first"], segment["state"])
    torch.testing.assert_close(alone, evaluation.value)


@pytest.mark.parametrize("gaussian", [Gaussian(squash=True), Gaussian(state_dependent_std=True, squash=True)], ids=str)
def test_evaluate_agrees_with_act_through_squashing_popart_and_normalisation(spaces, draw, memory, gaussian):
    settings = ActorCritic(encoder=SMALL, memory=memory, gaussian=gaussian, normalise_obs=True, popart=PopArt())
    policy = settings.build(spaces.vector, spaces.box)
    policy.observe(draw.tensors(spaces.vector, 100) * 5 + 3)
    policy.update_value_stats(torch.randn(100) * 50 + 20)
    segment, log_prob, value = rollout(policy, draw, spaces.vector, spaces.box)
    evaluation = evaluate(policy, segment)
    torch.testing.assert_close(evaluation.log_prob, log_prob, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(evaluation.value, value, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("space", ["choice", "nested"])
def test_evaluate_agrees_with_act_under_masks(spaces, draw, space):
    action_spec = getattr(spaces, space)
    mask_spec, mask = draw.mask(action_spec, T, B)
    policy = ActorCritic(encoder=SMALL, policy_gain=5.0).build(spaces.vector, action_spec, mask_spec)
    segment, log_prob, _ = rollout(policy, draw, spaces.vector, action_spec, mask)
    torch.testing.assert_close(evaluate(policy, segment).log_prob, log_prob, atol=1e-5, rtol=1e-4)


def test_each_episode_is_as_if_it_were_alone(spaces, draw, memory):
    policy = ActorCritic(encoder=SMALL, memory=memory, policy_gain=1.0).build(spaces.vector, spaces.choice)
    segment, _, _ = rollout(policy, draw, spaces.vector, spaces.choice)
    segment["first"][0] = True
    whole = evaluate(policy, segment)
    for b in range(B):
        starts = segment["first"][:, b].nonzero().flatten().tolist()
        for start, end in zip(starts, [*starts[1:], T], strict=True):
            rows = (slice(start, end), slice(b, b + 1))
            alone = policy.evaluate(
                segment["obs"][rows],
                segment["action"][rows],
                None,
                segment["first"][rows],
                tree_map(torch.from_numpy, zeros(policy.state, 1)),
            )
            torch.testing.assert_close(alone.log_prob, whole.log_prob[rows])
            torch.testing.assert_close(alone.value, whole.value[rows])


def test_act_is_a_pure_function_of_the_request(spaces, draw, memory):
    policy = ActorCritic(encoder=SMALL, memory=memory).build(spaces.vector, spaces.nested)
    request = {
        "obs": draw.tree(spaces.vector, B),
        "first": np.zeros(B, bool),
        "state": zeros(policy.state, B),
        "noise": draw.rng.random((B, policy.noise), dtype=np.float32),
    }
    for _, leaf in leaves(request):
        leaf.flags.writeable = False
    before = torch.get_rng_state()
    one, two = policy.act(request), policy.act(request)
    assert torch.equal(before, torch.get_rng_state())
    for (path, a), (_, b) in zip(leaves(one), leaves(two), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=str(path))
    assert set(one) == {"action", "state", *policy.extras}
    for name, spec in policy.extras.items():
        assert one[name].shape == (B, *spec.shape)
        assert one[name].dtype == spec.dtype


def test_without_noise_the_most_likely_action_is_taken(spaces, draw):
    policy = ActorCritic(encoder=SMALL, policy_gain=3.0).build(spaces.vector, spaces.choice)
    request = {"obs": draw.tree(spaces.vector, 20), "first": np.zeros(20, bool), "state": {}}
    best = policy.act(request)
    for noise in np.linspace(0, 0.999, 30, dtype=np.float32):
        drawn = policy.act({**request, "noise": np.full((20, 1), noise)})
        assert (drawn["log_prob"] <= best["log_prob"]).all()


def test_weights_come_from_the_seed_alone(spaces):
    before = torch.get_rng_state()
    one, two, other = (ActorCritic(memory=LSTM()).build(spaces.vector, spaces.box, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    same = [torch.equal(a, b) for a, b in zip(one.module.parameters(), two.module.parameters(), strict=True)]
    assert all(same)
    assert any(not torch.equal(a, b) for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True))


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
@pytest.mark.parametrize("gaussian", [Gaussian(), Gaussian(state_dependent_std=True, squash=True)], ids=str)
def test_gradients_reach_every_parameter(spaces, draw, memory, shared, gaussian):
    obs_spec = {"x": spaces.vector, "image": spaces.image}
    settings = ActorCritic(encoder=SMALL, memory=memory, shared=shared, gaussian=gaussian, popart=PopArt())
    policy = settings.build(obs_spec, spaces.nested)
    segment, _, _ = rollout(policy, draw, obs_spec, spaces.nested)
    evaluation = evaluate(policy, segment)
    (evaluation.log_prob + evaluation.entropy + evaluation.value).sum().backward()
    for name, parameter in policy.module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_the_state_has_a_part_for_each_trunk(spaces):
    def state(**settings):
        return ActorCritic(**settings).build(spaces.vector, spaces.choice).state

    h = Spec((6,), "float32")
    assert state() == state(shared=True) == {}
    assert state(memory=LSTM(size=6), shared=True) == {"h": h, "c": h}
    assert state(memory=GRU(size=6)) == {"actor": {"h": h}, "critic": {"h": h}}


def test_a_fresh_policy_is_nearly_uniform(spaces, draw):
    policy = ActorCritic().build(spaces.vector, spaces.choice)
    request = {"obs": draw.tree(spaces.vector, 50), "first": np.zeros(50, bool), "state": {}}
    np.testing.assert_allclose(policy.act(request)["log_prob"], np.log(0.25), atol=0.05)


def test_values_and_scale_follow_popart(spaces, draw):
    policy = ActorCritic(popart=PopArt()).build(spaces.vector, spaces.choice)
    obs, first = draw.tensors(spaces.vector, T, B), torch.zeros(T, B, dtype=torch.bool)
    before = policy.value(obs, first, {})
    assert policy.value_scale() == 1
    policy.update_value_stats(torch.tensor([[-300.0, 500.0]]))
    assert policy.value_scale() == 400
    torch.testing.assert_close(policy.value(obs, first, {}), before, atol=1e-4, rtol=1e-4)


def test_statistics_are_off_unless_asked_for(spaces, draw):
    policy = ActorCritic().build(spaces.vector, spaces.choice)
    before = {name: leaf.clone() for name, leaf in policy.module.state_dict().items()}
    policy.observe(draw.tensors(spaces.vector, 9))
    policy.update_value_stats(torch.tensor([1e6]))
    torch.testing.assert_close(policy.module.state_dict(), before)
    assert policy.value_scale() == 1


def test_statistics_travel_with_the_weights(spaces, draw):
    settings = ActorCritic(normalise_obs=True, popart=PopArt())
    one, two = (settings.build(spaces.vector, spaces.choice, seed=seed) for seed in (0, 1))
    one.observe(draw.tensors(spaces.vector, 9) * 7)
    one.update_value_stats(torch.tensor([3.0, 9.0]))
    two.module.load_state_dict(one.module.state_dict())
    request = {"obs": draw.tree(spaces.vector, 4), "first": np.zeros(4, bool), "state": {}}
    np.testing.assert_array_equal(one.act(request)["value"], two.act(request)["value"])


@pytest.mark.parametrize("action", ["choice", "box"])
def test_what_is_not_finite_is_an_error_that_says_where(spaces, draw, action):
    policy = ActorCritic().build({"x": spaces.vector}, getattr(spaces, action))
    obs = draw.tree({"x": spaces.vector}, 2)
    request = {"obs": obs, "first": np.zeros(2, bool), "state": {}, "noise": np.zeros((2, policy.noise), np.float32)}
    with torch.no_grad():
        policy.module.action_head.linear.bias[0] = torch.nan
    with pytest.raises(FloatingPointError, match="log_prob is not finite; the request is"):
        policy.act(request)
    obs["x"][1, 2] = np.nan
    with pytest.raises(FloatingPointError, match="neither is obs/x in the request"):
        policy.act(request)
    with torch.no_grad():
        policy.module.action_head.linear.bias[0] = 0
        policy.module.value_head.linear.bias[0] = torch.inf
    obs["x"][1, 2] = 0
    with pytest.raises(FloatingPointError, match="value is not finite"):
        policy.act(request)
