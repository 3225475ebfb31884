"""What an environment is to the rest: an EnvBatch, and how one is made from a name or a callable.

    "CartPole-v1"            a Gymnasium id
    "module:Id-v0"           the same, after importing a module that registers it
    "module:attribute"       any of the callables below, found in a module
    "envpool:Pong-v5"        an id of EnvPool; see envs/envpool.py
    a gymnasium.Env class, or a function returning an Env           called once per environment
    a class or function with the parameter `num_envs`               called once, with num_envs=size; it gives a
                                                                    gymnasium VectorEnv, an EnvBatch, or what writes
                                                                    into its own arrays (see envs/inplace.py)

An id that has a native vector environment which resets in the next step uses it, unless pictures are wanted. Atari
games and VizDoom's scenarios have batches of their own; see envs/atari.py and envs/vizdoom.py. This module must not
know who steps an EnvBatch, nor where the arrays it writes into lie.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, Protocol, runtime_checkable

import gymnasium
from gymnasium.envs.registration import EnvSpec, registry
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, VectorEnv

from srl.envs import atari, envpool, vizdoom
from srl.envs.faults import Limits
from srl.envs.guarded import Guarded
from srl.envs.gym import GymBatch
from srl.envs.inplace import InPlace, writes_in_place
from srl.envs.isolated import Isolated
from srl.envs.rebuilt import Rebuilt
from srl.envs.vector import VectorBatch
from srl.errors import UserError, nearest
from srl.tree import Array, SpecTree, Tree

Source = str | Callable[..., Any]
"""What an environment is made from."""

_FAMILIES = ((atari, atari.Atari), (vizdoom, vizdoom.Vizdoom))
"""Registered ids that are made in a way of their own: the module that knows which these are, and the batch."""

_VERSIONED = re.compile(r".+-v\d+")


@runtime_checkable
class EnvBatch(Protocol):
    """Many worlds stepped together, each resetting itself in the step after its episode's end."""

    size: int
    """Number of rows."""
    obs: SpecTree
    """One row of observations."""
    action: SpecTree
    """One row of actions."""
    mask: SpecTree | None
    """One row of legal actions, when the environment says which are legal."""
    frames_per_step: int
    """How many frames of the world pass in one step."""
    scored: bool
    """Whether what is learned from is not what counts: then `step` also says what counts."""

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row; writes out["obs"], and out["mask"] if there are masks."""
        ...

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action per row; also writes out["reward"], out["terminated"] and out["truncated"].

        A row whose episode has just ended shows its true final observation. The next step ignores that row's action
        and writes the first observation of its next episode, reward 0 and flags False. (Only a vector environment in
        SAME_STEP mode has already moved on by one step then, and gives that step's reward; see envs/vector.py.)

        One that is `scored` writes two more arrays, by which episodes are counted and nothing is learned:
        out["score"] [size] float32, the true reward, and out["game_over"] [size] bool, where an episode truly ends.
        """
        ...

    def render(self) -> Array | None:
        """The picture of environment 0, when it was built to draw one."""
        ...

    def close(self) -> None:
        """Give back what the environments hold."""
        ...


def name_of_env(env: Source) -> str:
    """How people read which environment this is."""
    if isinstance(env, str):
        return env
    made = env.func if isinstance(env, partial) else env
    return f"{made.__module__}:{getattr(made, '__qualname__', type(made).__qualname__)}"


def check_name(env: Source) -> None:
    """Refuse a name that stands for no environment, without building one."""
    _resolve(env)


def steps_together(env: Source) -> bool:
    """Whether many of these environments cost little more than one, being arrays of one computation."""
    try:
        source = _resolve(env)
    except UserError:
        return False  # to be said where the environment is checked
    return isinstance(source, EnvSpec) and source.vector_entry_point is not None and not _has_family(source)


def _has_family(spec: EnvSpec) -> bool:
    return any(family.options_of(spec) is not None for family, _ in _FAMILIES)


def isolated(env: Source, size: int, kwargs: dict[str, Any] | None = None, limits: Limits | None = None) -> EnvBatch:
    """Build `size` environments that each live in a process of their own."""
    check_name(env)
    return Isolated(partial(_row, env, kwargs), size, name_of_env(env), limits)


def _row(env: Source, kwargs: dict[str, Any] | None, row: int) -> EnvBatch:
    return make(env, 1, kwargs, vectors=False)


def make(
    env: Source,
    size: int,
    kwargs: dict[str, Any] | None = None,
    render_mode: str | None = None,
    *,
    limits: Limits | None = None,
    vectors: bool = True,
) -> EnvBatch:
    """Build `size` environments, each with the keyword arguments `kwargs`.

    With `limits` what fails is built anew: the environment where they are stepped one by one, else all together.
    Without `vectors` they are stepped one by one, wherever there is a choice.
    """
    name = name_of_env(env)
    if size < 1:
        raise UserError(f"{name}: the number of environments is {size}; it must be at least 1")
    options = dict(kwargs or {})
    if render_mode is not None:
        options["render_mode"] = render_mode

    def build() -> EnvBatch:
        with _building(name):
            source = _resolve(env)
            if isinstance(source, EnvSpec):
                return _make_registered(source, size, options, name, limits, vectors)
            return _make_from_callable(source, size, options, name, limits)

    batch = build()
    # What tells of faults takes care of them itself.
    return batch if limits is None or hasattr(batch, "faults") else Rebuilt(batch, build, name, limits)


def _one_by_one(build: Callable[[], Any], size: int, name: str, limits: Limits | None) -> EnvBatch:
    return GymBatch(build, size, name) if limits is None else Guarded(build, size, name, limits)


def _make_registered(
    spec: EnvSpec, size: int, options: dict[str, Any], name: str, limits: Limits | None, vectors: bool
) -> EnvBatch:
    for family, batch in _FAMILIES:
        own = family.options_of(spec)
        if own is not None:
            return batch(size, **{**own, **options})
    vector = _native_vector(spec, size, options, name) if vectors or spec.entry_point is None else None
    if vector is not None:
        return VectorBatch(vector, name)
    # Gymnasium's checker is one more call around every step and only warns; what the rows need is checked here.
    build = partial(gymnasium.make, spec.id, **{"disable_env_checker": True, **options})
    return _one_by_one(build, size, name, limits)


def _native_vector(spec: EnvSpec, size: int, options: dict[str, Any], name: str) -> VectorEnv[Any, Any, Any] | None:
    if spec.vector_entry_point is None or spec.additional_wrappers:
        return None
    # Vector environments seldom draw all that their single form draws.
    if "render_mode" in options and spec.entry_point is not None:
        return None
    vector = gymnasium.make_vec(spec.id, num_envs=size, vectorization_mode="vector_entry_point", **options)
    if spec.entry_point is None or vector.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP:
        return vector
    vector.close()
    return None


def _make_from_callable(
    source: Callable[..., Any], size: int, options: dict[str, Any], name: str, limits: Limits | None
) -> EnvBatch:
    many = _takes_num_envs(source)
    made: Any = source(num_envs=size, **options) if many else source(**options)
    kind: type[object] = made.__class__
    if issubclass(kind, gymnasium.Env) and not many:
        return _one_by_one(_first_then(made, partial(source, **options)), size, name, limits)
    batch: Any = made
    if issubclass(kind, VectorEnv):
        batch = VectorBatch(made, name)
    elif writes_in_place(made):
        batch = InPlace(made, name)
    if not isinstance(batch, EnvBatch):
        raise UserError(
            f"{name} gives a {kind.__name__}; it must give an Env, or with num_envs a VectorEnv or an EnvBatch"
        )
    if batch.size != size:
        batch.close()
        raise UserError(f"{name} gives {batch.size} environments, not {size}; let it take the number as num_envs")
    return batch


def _takes_num_envs(source: Any) -> bool:
    kind: type = source if inspect.isclass(source) else object
    if issubclass(kind, gymnasium.Env):
        return False  # a parameter num_envs of its own would mean something else
    return issubclass(kind, VectorEnv) or "num_envs" in inspect.signature(source).parameters


def _first_then(first: Any, build: Callable[[], Any]) -> Callable[[], Any]:
    """A builder that gives `first`, which had to be built to see what it is, and then builds the others."""
    ready = [first]
    return lambda: ready.pop() if ready else build()


@contextmanager
def _building(name: str) -> Generator[None]:
    """Say in one line what is missing or mistyped; keep quiet about old habits inside the packages of others."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message=".*(AutoresetMode|precision lowered)")
            yield
    except (ImportError, DependencyNotInstalled) as error:
        raise UserError(f"{name} cannot be built: {error}") from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UserError(f"{name} cannot be built: {error}") from error


def _resolve(env: Source) -> EnvSpec | Callable[..., Any]:
    if not isinstance(env, str):
        if not callable(env):
            raise UserError(f"an environment is a name or a callable, not {env!r}; pass the class or a function")
        return env
    if env.startswith(envpool.PREFIX):
        return envpool.source(env.removeprefix(envpool.PREFIX))
    module, colon, rest = env.rpartition(":")
    if not colon:
        return _registered(rest, env)
    found = _import(module, env)
    return _registered(rest, env) if _VERSIONED.fullmatch(rest) else _attribute(found, rest, env)


def _registered(env_id: str, env: str) -> EnvSpec:
    if env_id not in registry:
        for family, _ in _FAMILIES:
            family.register(env_id)
    spec = registry.get(env_id)
    if spec is None:
        hint = nearest(env_id, atari.without_unprepared(registry.values()))
        raise UserError(f"no environment {env!r} is registered with Gymnasium{hint}")
    return spec


def _import(module: str, env: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise UserError(
                f"environment {env!r}: no module {error.name!r}; is it installed or on PYTHONPATH?"
            ) from error
        raise UserError(f"environment {env!r}: importing {module!r} failed: {error}") from error
    except ImportError as error:
        raise UserError(f"environment {env!r}: importing {module!r} failed: {error}") from error


def _attribute(module: Any, path: str, env: str) -> Callable[..., Any]:
    def step_into(owner: Any, name: str) -> Any:
        if not hasattr(owner, name):
            hint = nearest(name, (known for known in dir(owner) if not known.startswith("_")))
            raise UserError(f"environment {env!r}: {owner.__name__} has no {name!r}{hint}")
        return getattr(owner, name)

    found = reduce(step_into, path.split("."), module)
    if not callable(found):
        raise UserError(f"environment {env!r} is a {type(found).__name__}; it must be a class or a function")
    return found
