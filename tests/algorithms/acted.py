"""Segments of noise in which a policy of srl.models acted."""

import numpy as np
import torch

from srl.tree import Spec, index, leaves, tree_map

OBS = {"a": Spec((3,), "float32"), "bits": Spec((2,), "int8", "binary")}
ACTION = {"move": Spec((), "int64", "discrete", (4,), (0,)), "push": Spec((2,), "float32")}
MASK = {"move": Spec((4,), "bool")}
STEPS, COLUMNS, CHUNK = 12, 4, 4


def play(policy, seed=0):
    """A segment of noise for observations and rewards, in which the policy itself acted."""
    rng = np.random.default_rng(seed)
    batch = {
        "obs": {
            "a": rng.normal(3.0, 2.0, (STEPS + 1, COLUMNS, 3)).astype(np.float32),
            "bits": rng.integers(0, 2, (STEPS + 1, COLUMNS, 2), dtype=np.int8),
        },
        "mask": {"move": rng.random((STEPS + 1, COLUMNS, 4)) < 0.7},
        "first": np.zeros((STEPS + 1, COLUMNS), bool),
        "terminated": np.zeros((STEPS, COLUMNS), bool),
        "truncated": np.zeros((STEPS, COLUMNS), bool),
        "valid": np.ones((STEPS, COLUMNS), bool),
    }
    batch["mask"]["move"][..., 0] = True
    batch["first"][0, :2] = batch["first"][7, 1] = True
    batch["truncated"][5, 1] = True
    batch["valid"][6, 1] = False
    batch["reward"] = (50 * rng.random((STEPS, COLUMNS))).astype(np.float32) * batch["valid"]
    state = tree_map(lambda spec: rng.normal(size=(COLUMNS, *spec.shape)).astype(np.float32), policy.state)
    replies, states = [], [state]
    for t in range(STEPS):
        request = {name: index(batch[name], t) for name in ("obs", "first", "mask")}
        noise = rng.random((COLUMNS, policy.noise), dtype=np.float32)
        replies.append(policy.act(request | {"state": states[-1], "noise": noise}))
        states.append(replies[-1]["state"])
    for name in ("action", "log_prob", "value"):
        batch[name] = tree_map(lambda *rows: np.stack(rows), *(reply[name] for reply in replies))
    if list(leaves(policy.state)):
        batch["state"] = tree_map(lambda *rows: np.stack(rows), *states[::CHUNK])
    return tree_map(torch.from_numpy, batch)
