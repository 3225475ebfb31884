"""Vector environments as one EnvBatch, whatever their autoreset mode.

    mode        the step after an end                                                      rows are
    NEXT_STEP   the environment resets that row itself                                     exact
    DISABLED    plays a throwaway step in that row, then that row is reset once more       exact
    SAME_STEP   plays the policy's action in that row, on the new episode's first state    exact but for that step

The row after an end always holds the true final observation, and its action is not learned from. In DISABLED mode a row
is reset when its episode ends, so that the environment may be stepped at all, and again after the throwaway step; both
with options={"reset_mask": rows}.

In SAME_STEP mode the environment cannot be held still. The step it plays in the reset row is lost to learning: the row
stays invalid, its flags are False, and its reward is given as it is, so that it counts in the episode's return.
Where the new episode ends within that very step, the whole of it is left out: reward 0, flags False, a warning the
first time, and the row that follows holds the first observation of the episode after it. No row mixes two episodes.

This module must not know how a vector environment was found or built.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from srl.envs.faults import Unusable
from srl.envs.gym import seeds
from srl.envs.masks import find_masks, seen_space
from srl.envs.spaces import Observations, action_batch, spec_of_space
from srl.errors import UserError
from srl.tree import Array, SpecTree, Tree


class VectorBatch:
    """A vector environment, its rows made to follow the one step semantics."""

    frames_per_step = 1
    scored = False
    kept = ("_vector", "_ended")

    def __init__(self, vector: VectorEnv[Any, Any, Any], name: str) -> None:
        self.size = vector.num_envs
        self._vector = vector
        self._name = name
        mode = _autoreset_mode(vector, name)
        self._turn = {
            AutoresetMode.NEXT_STEP: self._next_step,
            AutoresetMode.SAME_STEP: self._same_step,
            AutoresetMode.DISABLED: self._disabled,
        }[mode]
        spaces: Any = vector  # Gymnasium types its spaces only in part
        self._action_space: Any = spaces.single_action_space
        self.action: SpecTree = spec_of_space(self._action_space, f"{name}: action")
        self._masks = find_masks(spaces.single_observation_space, self._action_space, self._first_info, name)
        seen = seen_space(spaces.single_observation_space, self._masks, name)
        self.obs: SpecTree = spec_of_space(seen, f"{name}: observation")
        self.mask: SpecTree | None = self._masks.spec if self._masks else None
        self._write_all = Observations(seen, name, (self.size,)).write
        self._write_one = Observations(seen, name).write
        self._ended = np.zeros(self.size, bool)
        self._warned = False
        self.by_row = mode is AutoresetMode.DISABLED or isinstance(vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        """Whether single rows can be begun anew."""

    def restart(self, rows: Array, out: dict[str, Any]) -> None:
        """Begin new episodes in these rows, in place of what the last step gave."""
        obs, info = self._call(self._vector.reset, options={"reset_mask": rows.copy()})
        self._write_rows(out["obs"], obs, rows)
        self._write_masks(out, obs, info, rows)
        for name in ("reward", "terminated", "truncated"):
            out[name][rows] = 0
        self._ended[rows] = False

    def reset(self, seed: int, out: dict[str, Any]) -> None:
        """Start an episode in every row."""
        obs, info = self._call(self._vector.reset, seed=seeds(seed, 1)[0])
        self._write_all(out["obs"], ..., obs)
        self._write_masks(out, obs, info, np.ones(self.size, bool))
        self._check_masks(out)
        self._ended = np.zeros(self.size, bool)

    def step(self, action: Tree, out: dict[str, Any]) -> None:
        """Play one action in every row whose episode goes on; the other rows begin a new episode."""
        obs, reward, terminated, truncated, info = self._call(
            self._vector.step, action_batch(self._action_space, action)
        )
        self._write_all(out["obs"], ..., obs)
        out["reward"][:], out["terminated"][:], out["truncated"][:] = reward, terminated, truncated
        self._ended = self._turn(out, obs, info, self._ended, out["terminated"] | out["truncated"])
        self._check_masks(out)

    def render(self) -> Array | None:
        """The picture of the first row, when the environment was built to draw one."""
        frames: Any = self._vector.render() if self._vector.render_mode is not None else None
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the vector environment."""
        self._vector.close()

    def abandon(self) -> None:
        """Close a vector environment that has failed; its processes are killed, because it would wait for them."""
        vector: Any = self._vector.unwrapped
        if isinstance(vector, AsyncVectorEnv):
            for process in vector.processes:
                process.kill()
                process.join()
            vector.closed = True
        self._vector.close()

    # Each mode takes what the step gave, the rows that were to be reset in it, and the rows whose episode it ended.
    # It puts `out` right and says which rows are to be reset in the next step.

    def _next_step(self, out: dict[str, Any], obs: Any, info: dict[str, Any], resetting: Array, ended: Array) -> Array:
        if (resetting & ended).any():
            raise Unusable(
                f"{self._name} ended an episode in the step that should only have reset it; "
                "if it resets within the step of the end, set metadata['autoreset_mode'] to SAME_STEP"
            )
        out["reward"][resetting] = 0
        self._write_masks(out, obs, info, ~ended)
        if self._masks:
            self._masks.allow(out["mask"], ended)
        return ended

    def _same_step(self, out: dict[str, Any], obs: Any, info: dict[str, Any], resetting: Array, ended: Array) -> Array:
        lost = resetting & ended
        if lost.any():
            self._forget(out, lost)
        shown = ended & ~resetting
        if shown.any():
            self._write_final(out["obs"], info, shown)
        # The action chosen in a final row is played on the new episode's first state: that state's mask holds for it.
        self._write_masks(out, obs, info, np.ones(self.size, bool))
        return shown

    def _disabled(self, out: dict[str, Any], obs: Any, info: dict[str, Any], resetting: Array, ended: Array) -> Array:
        ended = ended & ~resetting
        fresh = resetting | ended
        self._write_masks(out, obs, info, ~fresh)
        if not fresh.any():
            return ended
        obs, info = self._call(self._vector.reset, options={"reset_mask": fresh.copy()})
        self._write_masks(out, obs, info, fresh)
        for name in ("reward", "terminated", "truncated"):
            out[name][resetting] = 0
        self._write_rows(out["obs"], obs, resetting)
        return ended

    def _forget(self, out: dict[str, Any], rows: Array) -> None:
        for name in ("reward", "terminated", "truncated"):
            out[name][rows] = 0
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._name}: an episode began and ended within a reset row of SAME_STEP autoreset; "
                "such episodes are left out, NEXT_STEP or DISABLED would keep them",
                stacklevel=4,
            )

    def _write_final(self, target: Any, info: dict[str, Any], rows: Array) -> None:
        final, given = info.get("final_obs"), info.get("_final_obs", rows)
        if final is None or (rows & ~np.asarray(given, bool)).any():
            raise Unusable(
                f"{self._name}: an episode ended without info['final_obs'], which SAME_STEP autoreset needs to show "
                "the true last observation; give it, or make the environment with NEXT_STEP or DISABLED autoreset"
            )
        self._write_rows(target, final, rows)

    def _write_rows(self, target: Any, obs: Any, rows: Array) -> None:
        for i in np.flatnonzero(rows).tolist():
            self._write_one(target, i, _row(obs, i))

    def _write_masks(self, out: dict[str, Any], obs: Any, info: dict[str, Any], rows: Array) -> None:
        if self._masks:
            self._masks.write_rows(out["mask"], obs, info, rows)

    def _check_masks(self, out: dict[str, Any]) -> None:
        if self._masks:
            self._masks.check(out["mask"])

    def _first_info(self) -> dict[str, Any]:
        return self._call(self._vector.reset, seed=0)[1]

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            error.add_note(f"in the vector environment {self._name} of {self.size} environments")
            raise


def _autoreset_mode(vector: VectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise UserError(
            f"{name}: metadata['autoreset_mode'] is {mode!r}; set it to a gymnasium.vector.AutoresetMode"
        ) from error


def _row(batch: Any, i: int) -> Any:
    """One environment's part of what is batched leaf by leaf; arrays of objects hold it whole."""
    parts: Any = batch
    if isinstance(batch, dict):
        return {key: _row(child, i) for key, child in parts.items()}
    if isinstance(batch, tuple):
        return tuple(_row(child, i) for child in parts)
    return parts[i]
