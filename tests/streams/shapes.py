"""Shapes of a small recurrent policy with masks: every optional part of a request and of a segment is there."""

from srl.streams.base import Shapes
from srl.tree import Spec

REAL = Spec((), "float32")
SHAPES = Shapes(
    obs={"seen": Spec((2,), "float32"), "image": Spec((1, 2, 2), "uint8")},
    action=Spec((), "int64", "discrete", (3,), (0,)),
    mask=Spec((3,), "bool"),
    state={"h": Spec((4,), "float32")},
    extras={"log_prob": REAL, "value": REAL},
    noise=1,
    params={"w": Spec((2,), "float32")},
)
SMALL = Shapes(
    obs=Spec((1,), "float32"), action=SHAPES.action, mask=None, state={}, extras=SHAPES.extras, noise=1, params={}
)
