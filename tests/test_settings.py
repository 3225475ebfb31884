"""Settings survive YAML, paths replace what they name, and no text chooses what is executed."""

import dataclasses
import random
import string
import sys

import pytest

from srl.algorithms.impala import IMPALA
from srl.algorithms.ppo import PPO
from srl.errors import UserError
from srl.experiment import Actors, Experiment, Policies, Stop, Train, Trainers
from srl.models.config import GRU, LSTM, MLP, ActorCritic, Auto, Gaussian, NatureCNN, PopArt, ResNet
from srl.recipes.impala import impala
from srl.recipes.ppo import ppo
from srl.settings import from_yaml, parse_value, set_path, to_plain, to_yaml, trusting

RESOLVE = trusting()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own:
    """A user's settings of an algorithm."""

    sizes: tuple[int, ...] = (1, 2)
    inner: MLP | None = None

    def build(self, policy, seed=0):
        raise NotImplementedError


def with_model(model):
    return dataclasses.replace(ppo(), policies={"main": Policies(model=model)})


EXPERIMENTS = {
    "ppo": ppo(),
    "impala": impala(),
    "lstm": ppo(memory="lstm"),
    "gru": ppo(memory="gru"),
    "many": impala("Pendulum-v1", actors=2, ring=2, envs=8, max_lag=3, act="shm", eval_every=1000, memory="lstm"),
    "floats": ppo(learning_rate=1e-5, gamma=1.0, stop_at_reward=-200.0, hidden=(7,)),
    "normalised": ppo(normalise=True, anneal=True),
    "no-hidden": ppo(hidden=()),
    "huge": ppo(steps=10**15, seed=2**31),
    "own": dataclasses.replace(ppo(), trainers={"main": Trainers(algorithm=Own(sizes=(3,), inner=MLP(hidden=(5,))))}),
    "cnn": with_model(ActorCritic(encoder=Auto(image=ResNet(channels=(4,))), popart=PopArt())),
    "flat": with_model(ActorCritic(encoder=MLP(activation="relu", layer_norm=True), gaussian=Gaussian(squash=True))),
    "import-string": with_model(ActorCritic(encoder="mine.encoders:Mine")),
    "part-import-string": with_model(ActorCritic(encoder=Auto(vector="mine:Mine", image=NatureCNN(features=3)))),
    "odd-text": dataclasses.replace(ppo("a: b"), name="1e6"),
    "kwargs": dataclasses.replace(
        ppo(),
        actors={"main": Actors(env="E-v0", env_kwargs={"size": 3, "f": 0.1, "on": True, "none": None, "s": "no"})},
    ),
    "nested-kwargs": dataclasses.replace(ppo(), actors=Actors(env="E-v0", env_kwargs={"a": {"b": [1, 2, {"c": 3}]}})),
    "streams": dataclasses.replace(ppo(), streams={"main": Train(chunk=16, late="drop"), "x": Train(rollout=8)}),
    "clock": dataclasses.replace(ppo(), stop=Stop(seconds=0.5)),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_survives_yaml(name):
    experiment = EXPERIMENTS[name]
    text = to_yaml(experiment)
    again = from_yaml(Experiment, text, RESOLVE)
    assert again == experiment
    assert to_yaml(again) == text


def test_settings_named_type_are_not_taken_for_a_class():
    experiment = dataclasses.replace(ppo(), actors=Actors(env="E-v0", env_kwargs={"type": "small"}))
    assert from_yaml(Experiment, to_yaml(experiment), RESOLVE) == experiment


def test_an_environment_that_is_a_class_becomes_the_name_it_is_imported_by():
    from srl.envs.fake import Counting

    again = from_yaml(Experiment, to_yaml(ppo(Counting)), RESOLVE)
    assert again.actors["main"].env == "srl.envs.fake:Counting"


def test_yaml_keeps_the_order_of_the_fields_and_says_every_one():
    plain = to_plain(ppo(), Experiment)
    assert list(plain) == [field.name for field in dataclasses.fields(Experiment)]
    assert plain["trainers"]["main"]["algorithm"]["type"] == "srl.algorithms.ppo:PPO"
    assert len(plain["trainers"]["main"]["algorithm"]) == 1 + len(dataclasses.fields(PPO))


@pytest.mark.parametrize(
    ("path", "text", "get", "value"),
    [
        ("seed", "7", lambda e: e.seed, 7),
        ("stop.steps", "1e6", lambda e: e.stop.steps, 1_000_000),
        ("stop.steps", "none", lambda e: e.stop.steps, None),
        ("stop.reward", "3", lambda e: e.stop.reward, 3.0),
        ("stall_seconds", "10", lambda e: e.stall_seconds, 10.0),
        ("streams.main.late", "drop", lambda e: e.streams["main"].late, "drop"),
        ("trainers.main.algorithm.anneal", "true", lambda e: e.trainers["main"].algorithm.anneal, True),
        ("trainers.main.algorithm.learning_rate", "1e-4", lambda e: e.trainers["main"].algorithm.learning_rate, 1e-4),
        ("policies.main.model.encoder.vector.hidden", "[8, 9]", lambda e: _vector(e).hidden, (8, 9)),
        ("policies.main.model.encoder.vector.activation", "relu", lambda e: _vector(e).activation, "relu"),
        ("policies.main.model.popart.rate", "0.5", lambda e: e.policies["main"].model.popart.rate, 0.5),
        ("policies.main.model.memory.size", "12", lambda e: e.policies["main"].model.memory, GRU(size=12)),
        ("policies.main.model.memory", "none", lambda e: e.policies["main"].model.memory, None),
        ("policies.main.model.encoder", "mine:Mine", lambda e: e.policies["main"].model.encoder, "mine:Mine"),
        ("actors.main.env_kwargs.lengths", "[3, 4]", lambda e: e.actors["main"].env_kwargs, {"lengths": [3, 4]}),
        ("actors.main.env", "Pendulum-v1", lambda e: e.actors["main"].env, "Pendulum-v1"),
    ],
)
def test_a_path_replaces_what_it_names_and_nothing_else(path, text, get, value):
    experiment = with_model(ActorCritic(memory=GRU(), popart=PopArt()))
    changed = set_path(experiment, path, text, RESOLVE)
    assert get(changed) == value
    assert type(get(changed)) is type(value)
    before, after = to_yaml(experiment).splitlines(), to_yaml(changed).splitlines()
    assert len(set(after) - set(before)) <= 4


def _vector(experiment):
    return experiment.policies["main"].model.encoder.vector


def test_a_path_may_name_a_whole_settings_object():
    text = "{type: 'srl.algorithms.impala:IMPALA', gamma: 0.5}"
    changed = set_path(ppo(), "trainers.main.algorithm", text, RESOLVE)
    assert changed.trainers["main"].algorithm == IMPALA(gamma=0.5)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("sed", "1", "did you mean 'seed'"),
        ("seed", "x", "seed must be int, not 'x'"),
        ("seed", "1.5", "seed must be int"),
        ("seed", "true", "seed must be int"),
        ("seed", "{a: 1}", "seed must be int"),
        ("stop", "3", "stop must be Stop"),
        ("stop.step", "3", "did you mean 'steps'"),
        ("stop.steps.x", "3", "has no settings inside"),
        ("streams.main.late", "dropp", "did you mean 'drop'"),
        ("streams.main.max_lag", "-1", "max_lag"),
        ("streams.mian.max_lag", "1", "did you mean 'main'"),
        ("streams.main", "3", "streams.main must be Train"),
        ("actors", "3", "actors"),
        ("policies.main.model", "3", "model must be Model"),
        ("policies.main.model.encoder", "3", "encoder"),
        ("policies.main.model.encoder.vector.hidden", "8", "hidden"),
        ("trainers.main.algorithm.clip", "-1", "clip"),
        ("trainers.main.algorithm", "{type: 'os:system'}", "not a settings dataclass"),
        ("", "3", "unknown setting"),
    ],
)
def test_what_does_not_fit_is_named(path, text, said):
    with pytest.raises(UserError, match=said):
        set_path(ppo(), path, text, RESOLVE)


def paths_of(plain, path=()):
    """The path of every field in plain data; keys that are free names are left out."""
    for key, value in plain.items():
        if key != "type":
            if path[:-1] != () or not path or path[0] == "stop":
                yield (*path, key)
            if isinstance(value, dict):
                yield from paths_of(value, (*path, key))


def misspelt(word, dice):
    at = dice.randrange(len(word))
    letter = dice.choice(string.ascii_lowercase)
    return dice.choice(
        [word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :]]
    )


def test_a_misspelt_key_is_named_with_the_nearest_right_one():
    dice = random.Random(0)
    experiment = EXPERIMENTS["many"]
    known = [path for path in paths_of(to_plain(experiment, Experiment)) if len(path[-1]) > 5]
    assert len(known) > 30
    for _ in range(100):
        path = dice.choice(known)
        wrong = misspelt(path[-1], dice)
        plain = to_plain(experiment, Experiment)
        owner = plain
        for key in path[:-1]:
            owner = owner[key]
        if wrong in owner:
            continue
        with pytest.raises(UserError, match=f"unknown setting .*{wrong}") as by_path:
            set_path(experiment, ".".join([*path[:-1], wrong]), "1", RESOLVE)
        owner[wrong] = owner.pop(path[-1])
        with pytest.raises(UserError, match=f"unknown setting .*{wrong}") as by_text:
            from_yaml(Experiment, _dumped(plain), RESOLVE)
        for raised in (by_path, by_text):
            assert f"did you mean '{path[-1]}'" in str(raised.value)


def _dumped(plain):
    import yaml

    return yaml.safe_dump(plain, sort_keys=False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "Experiment"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
        ("actors: {main: {env: E-v0}}", "policies|trainers"),
        ("{}", "actors"),
    ],
)
def test_text_that_describes_no_experiment_is_refused_in_one_line(text, said):
    with pytest.raises(UserError, match=said):
        from_yaml(Experiment, text, RESOLVE)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("os:system", "not a settings dataclass"),
        ("subprocess:Popen", "not a settings dataclass"),
        ("srl.cli:main", "not a settings dataclass"),
        ("srl.params.shm:Reader", "not a settings dataclass"),
        ("srl.nowhere:PPO", "cannot import"),
        ("srl.algorithms.ppo:PPOO", "cannot import"),
        ("srl.algorithms.ppo", "cannot import|not a settings dataclass"),
        ("", "not part of srl"),
        ("srl_test_untrusted:Evil", "--trust srl_test_untrusted"),
        ("srl_test_untrusted.deep:Evil", "--trust srl_test_untrusted"),
    ],
)
def test_only_trusted_dataclasses_are_resolved(target, said):
    with pytest.raises(UserError, match=said):
        RESOLVE(target)


@pytest.fixture
def untrusted(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported."""
    mark = tmp_path / "imported"
    (tmp_path / "srl_test_untrusted.py").write_text(
        f"import dataclasses\nopen({str(mark)!r}, 'w').close()\n@dataclasses.dataclass\nclass Fine:\n    x: int = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield mark
    sys.modules.pop("srl_test_untrusted", None)


def test_a_module_is_only_imported_when_it_is_trusted(untrusted):
    text = to_yaml(ppo()).replace("srl.algorithms.ppo:PPO", "srl_test_untrusted:Fine")
    with pytest.raises(UserError, match="--trust srl_test_untrusted"):
        from_yaml(Experiment, text, RESOLVE)
    assert not untrusted.exists()
    assert trusting("srl_test_untrusted")("srl_test_untrusted:Fine")().x == 1
    assert untrusted.exists()
    assert RESOLVE("srl_test_untrusted:Fine")().x == 1


def test_resolving_a_function_does_not_call_it(tmp_path):
    text = f"actors: {{main: {{type: 'os:mkdir', path: '{tmp_path / 'made'}'}}}}"
    with pytest.raises(UserError, match="not a settings dataclass"):
        from_yaml(Experiment, text, RESOLVE)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("1_000", 1000),
        ("-3", -3),
        ("+3", 3),
        ("2.5e-4", 2.5e-4),
        (".5", 0.5),
        ("5.", 5.0),
        ("1_000.5", 1000.5),
        ("none", None),
        ("None", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("[1, 2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("CartPole-v1", "CartPole-v1"),
        ("module:Class", "module:Class"),
        ("[", "["),
        ("", None),
    ],
)
def test_values_are_read_as_people_type_them(text, value):
    read = parse_value(text)
    assert read == value
    assert type(read) is type(value)


def test_equal_settings_give_equal_text():
    assert to_yaml(ActorCritic(memory=LSTM())) == to_yaml(ActorCritic(memory=LSTM(size=128)))
    assert to_yaml(ActorCritic(memory=LSTM())) != to_yaml(ActorCritic(memory=GRU()))
