"""Flags come from a recipe's parameters, and what is mistyped is named with what was meant."""

from typing import Literal

import pytest

from srl import flags
from srl.errors import UserError
from srl.recipes.ppo import ppo


def recipe(
    env: str,
    *,
    steps: int | None = None,
    rate: float = 0.1,
    actors: int = 1,
    fast: bool = True,
    anneal: bool | None = None,
    max_lag: int = 0,
    act: Literal["inline", "shm"] = "inline",
    memory: Literal["none", "lstm"] | None = None,
    hidden: tuple[int, ...] | None = None,
):
    """A recipe with every kind of parameter.

    Args:
        env: where it acts
        rate: 50% of something
        max_lag: how old
    """
    return env, steps, rate, actors, fast, anneal, max_lag, act, memory, hidden


def parsed(*words):
    parser = flags.Parser(prog="srl train recipe")
    flags.add_parameters(parser, recipe)
    return flags.given(parser.parse_all(["--env", "E", *words]), recipe)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--steps", "1e6"], "steps", 1_000_000),
        (["--steps=1_000"], "steps", 1000),
        (["--steps", "none"], "steps", None),
        (["--actors", "3"], "actors", 3),
        (["--rate", "1e-3"], "rate", 1e-3),
        (["--rate", "2"], "rate", 2.0),
        (["--rate", "-0.5"], "rate", -0.5),
        (["--no-fast"], "fast", False),
        (["--fast"], "fast", True),
        (["--anneal"], "anneal", True),
        (["--no_anneal"], "anneal", False),
        (["--max-lag", "2"], "max_lag", 2),
        (["--max_lag", "2"], "max_lag", 2),
        (["--max_lag=2"], "max_lag", 2),
        (["--act", "shm"], "act", "shm"),
        (["--memory", "none"], "memory", "none"),
        (["--hidden", "64"], "hidden", (64,)),
        (["--hidden", "64,32"], "hidden", (64, 32)),
        (["--hidden", "(64, 32)"], "hidden", (64, 32)),
        (["--hidden", "[64,32]"], "hidden", (64, 32)),
        (["--env", "my_module:my_env"], "env", "my_module:my_env"),
    ],
)
def test_a_flag_becomes_a_value_of_its_parameters_type(words, name, value):
    found = parsed(*words)[name]
    assert found == value
    assert type(found) is type(value)


def test_what_is_not_given_is_left_to_the_recipe():
    assert parsed() == {"env": "E"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-lga", "1"], "--max-lga.*did you mean '--max-lag'"),
        (["--max_lga=1"], "did you mean '--max-lag'"),
        (["--no-anneel"], "did you mean '--no-anneal'"),
        (["--max", "1"], "--max"),
        (["more"], "argument 'more'"),
        (["--act", "shn"], "--act.*'shn'.*did you mean 'shm'"),
        (["--memory", "lstn"], "did you mean 'lstm'"),
        (["--steps"], "--steps"),
        (["--steps", "many"], "--steps must be a whole number, not 'many'"),
        (["--steps", "1.5"], "--steps must be a whole number"),
        (["--steps", "true"], "--steps must be a whole number"),
        (["--steps", "1e400"], "--steps must be a whole number"),
        (["--rate", "quick"], "--rate must be a number, not 'quick'"),
        (["--actors", "none"], "--actors must be a whole number"),
    ],
)
def test_what_cannot_be_used_is_named(words, said):
    with pytest.raises(UserError, match=said):
        parsed(*words)


def test_a_parameter_the_recipe_needs_is_asked_for():
    parser = flags.Parser(prog="x")
    flags.add_parameters(parser, recipe)
    with pytest.raises(UserError, match="needs --env"):
        flags.given(parser.parse_all([]), recipe)


def test_help_comes_from_the_docstring():
    parser = flags.Parser(prog="x")
    flags.add_parameters(parser, recipe)
    text = parser.format_help()
    for part in ("where it acts", "50% of something [0.1]", "--max-lag N", "inline|shm", "--no-fast"):
        assert part in " ".join(text.split())
    assert flags.first_line(recipe) == "A recipe with every kind of parameter."


def test_every_parameter_of_a_built_in_recipe_has_help():
    assert set(flags.help_of(ppo)) == set(ppo.__annotations__) - {"return"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pppo", "did you mean 'ppo'"),
        ("srl.recipes.pppo:ppo", "no module"),
        ("srl.recipes.ppo:pppo", "did you mean 'ppo'"),
        ("srl.recipes.ppo:DEFAULTS", "not a function"),
    ],
)
def test_a_recipe_that_is_not_there_is_named(name, said):
    with pytest.raises(UserError, match=said):
        flags.find_recipe(name)


def test_recipes_are_found_by_name_and_by_import_string(tmp_path, monkeypatch):
    assert flags.find_recipe("ppo") is ppo
    assert flags.find_recipe("srl.recipes.ppo:ppo") is ppo
    (tmp_path / "srl_test_recipe.py").write_text("def mine():\n    '''Mine.'''\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert flags.first_line(flags.find_recipe("srl_test_recipe:mine")) == "Mine."


def test_a_module_that_lacks_something_itself_is_not_taken_for_a_missing_recipe(tmp_path, monkeypatch):
    (tmp_path / "srl_test_broken.py").write_text("import srl_test_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="srl_test_absent"):
        flags.find_recipe("srl_test_broken:mine")


def test_whole_numbers_of_other_options():
    assert flags.whole_number("--episodes")("1e2") == 100
    with pytest.raises(UserError, match="--episodes"):
        flags.whole_number("--episodes")("few")
