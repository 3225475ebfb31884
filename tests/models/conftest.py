"""What the tests of models share: one thread, one seed, example spaces, random data for any spec."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from srl.tree import Spec, SpecTree, leaves, tree_map


@pytest.fixture(autouse=True)
def one_thread_one_seed() -> None:
    """The machine is shared, and a failure should come again."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Spaces:
    """Specs that every kind of test uses."""

    vector = Spec((3,), "float32")
    image = Spec((40, 44, 3), "uint8", low=0.0, high=255.0)
    choice = Spec((), "int64", "discrete", n=(4,), start=(0,))
    choices = Spec((2, 2), "int64", "discrete", n=(3, 2, 5, 4), start=(0, 0, 0, 0))
    bits = Spec((3,), "int8", "binary")
    box = Spec((2,), "float32", low=(-1.0, 0.5), high=(3.0, 1.0))
    nested: ClassVar[SpecTree] = {"move": {"0": box, "1": choice}, "say": {"bits": bits, "words": choices}}


class Draw:
    """Random data for specs, from one seed."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def leaf(self, spec: Spec, *lead: int) -> Any:
        """Values that a leaf may take."""
        shape = (*lead, *spec.shape)
        if spec.kind == "discrete":
            return self.rng.integers(0, np.array(spec.n), (*lead, len(spec.n))).reshape(shape)
        if spec.kind == "binary" or spec.dtype == "uint8":
            return self.rng.integers(0, 2 if spec.kind == "binary" else 256, shape).astype(spec.dtype)
        return self.rng.normal(size=shape).astype(spec.dtype)

    def tree(self, spec: SpecTree, *lead: int) -> Any:
        """Values that a tree may take."""
        return tree_map(lambda leaf: self.leaf(leaf, *lead), spec)

    def tensors(self, spec: SpecTree, *lead: int) -> Any:
        """The same as torch tensors."""
        return tree_map(torch.from_numpy, self.tree(spec, *lead))

    def mask(self, action_spec: SpecTree, *lead: int) -> tuple[SpecTree, Any]:
        """Spec and values of a mask that always leaves every element its first choice, or its last."""
        masks: Any = {}
        for path, spec in leaves(action_spec):
            if spec.kind != "discrete":
                continue
            values = self.rng.random((*lead, sum(spec.n))) < 0.5
            ends = np.cumsum(spec.n) - 1
            values[..., ends] |= ~values[..., np.cumsum((0, *spec.n[:-1]))]
            node = masks
            for key in path[:-1]:
                node = node.setdefault(key, {})
            if not path:
                return Spec((sum(spec.n),), "bool"), values
            node[path[-1]] = values
        return tree_map(lambda leaf: Spec(leaf.shape[len(lead) :], "bool"), masks), masks


@pytest.fixture
def spaces() -> type[Spaces]:
    """Example specs."""
    return Spaces


@pytest.fixture
def draw() -> Draw:
    """A fresh source of random data."""
    return Draw()
