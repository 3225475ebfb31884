"""Ranks that share a batch learn what one trainer learns from the whole of it."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from srl.algorithms import PPO
from srl.errors import Closed, UserError
from srl.memory import Listener
from srl.models.config import ActorCritic
from srl.workers.ranks import Alone, Ranks
from tests.algorithms.acted import ACTION, MASK, OBS, play

from .together import KINDS, in_ranks, meet, part_of, whole

LOSSES = ("loss", "policy_gradient_loss", "value_loss", "entropy_loss")


def assert_alike(one: dict[str, Any], several: list[dict[str, Any]], tolerance: float) -> None:
    """Ranks hold the same, bit for bit, and what one trainer holds, up to rounding."""
    for at, expected in enumerate(one["stats"]):
        got = several[0]["stats"][at]
        for name in LOSSES:
            assert got[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-5), (at, name)
        for name in ("approx_kl", "grad_norm", "explained_variance", "learning_rate", "n_updates"):
            assert got[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-3), (at, name)
    for name in ("weights", "gradients"):
        torch.testing.assert_close(several[0][name], one[name], rtol=tolerance, atol=tolerance)
    for other in several[1:]:
        assert other["stats"] == several[0]["stats"]
        torch.testing.assert_close(other["weights"], several[0]["weights"], rtol=0, atol=0)
    scales = [learned["state"]["reward_scale"] for learned in (one, *several)]
    moments = [[scale.get(name) for name in ("count", "mean", "squares")] for scale in scales]
    assert moments[1:] == [moments[1]] * len(several)
    assert moments[1] == pytest.approx(moments[0], rel=1e-9)


@pytest.mark.parametrize("kind", ["ppo", "impala"])
def test_a_hundred_updates_of_two_ranks_have_the_losses_of_one_trainer(kind, tmp_path):
    one, batches = whole(kind, 100)
    assert_alike(one, in_ranks(kind, batches, 2, tmp_path), 1e-3)
    if kind == "ppo":
        epochs = {stats["epochs"] for stats in one["stats"]}
        assert len(epochs) > 1, "some updates stopped early"


# What torch's compiler imports warns of torch's own past.
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*instantiated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_whole_batch(kind, tmp_path):
    one, batches = whole(kind, 2)
    count = 4 if kind == "ppo" else 2
    assert_alike(one, in_ranks(kind, batches, count, tmp_path), 1e-5)


@pytest.fixture
def several() -> Iterator[Callable[[int], list[Ranks]]]:
    """A function that makes the ranks of a group, all in this process."""
    listeners: list[Listener] = []

    def make(count: int) -> list[Ranks]:
        listeners.append(Listener())
        port, fd = listeners[-1].address[1], os.dup(listeners[-1].fds()[0])
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(lambda rank: meet(rank, count, port, None if rank else fd), range(count)))

    yield make
    for listener in listeners:
        listener.close()


def each(ranks: list[Ranks], ask: Callable[[Ranks], Any]) -> list[Any]:
    """What each rank answers when all are asked at once."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(ask, ranks))


def test_a_vote_waits_for_nobody_and_wakes_everyone(several) -> None:
    first, second = several(2)
    one = first.gather(np.array([1.0, 2.0]))
    assert one.result() is None
    assert not select.select(first.fds(), [], [], 0.05)[0]
    other = second.gather(np.array([3.0, 4.0]))
    for ranks, vote in ((first, one), (second, other)):
        assert select.select(ranks.fds(), [], [], 5)[0]
        assert vote.result().tolist() == [[1.0, 2.0], [3.0, 4.0]]
        assert not select.select(ranks.fds(), [], [], 0)[0], "it wakes once"
    assert Alone().gather(np.array([1.0])).result().tolist() == [[1.0]]


def test_means_are_weighted_and_keep_shapes(several) -> None:
    parts = [torch.arange(5.0)[:3], torch.arange(5.0)[3:]]

    def ask(ranks: Ranks) -> list[torch.Tensor]:
        part = parts[ranks.rank]
        return ranks.mean([part.mean(), torch.full((2, 2), part.sum())], torch.tensor(len(part)))

    (mean, square), again = each(several(2), ask)
    assert mean == torch.arange(5.0).mean()
    torch.testing.assert_close(square, torch.full((2, 2), (3 * 3 + 2 * 7) / 5))
    assert torch.equal(again[1], square)


def test_moments_are_those_of_all_rows_even_where_one_has_none(several) -> None:
    rows = torch.randn(20, 3, dtype=torch.float64) * 5 + 100
    parts = [rows[:3], rows[3:3], rows[3:]]
    for count, mean, var in each(several(3), lambda ranks: ranks.moments(parts[ranks.rank])):
        assert count == 20
        torch.testing.assert_close(mean, rows.mean(0))
        torch.testing.assert_close(var, rows.var(0, correction=0))


def test_all_begin_with_what_the_first_one_has_and_do_what_it_says(several) -> None:
    def ask(ranks: Ranks) -> tuple[Any, int]:
        tensors = [torch.full((2, 3), float(ranks.rank)).t(), torch.tensor(ranks.rank), torch.tensor([ranks.rank > 0])]
        ranks.broadcast(tensors)
        return [tensor.tolist() for tensor in tensors], ranks.told(10 + ranks.rank)

    assert each(several(2), ask) == [([[[0.0, 0.0]] * 3, 0, [False]], 10)] * 2


def test_nobody_listens_any_more_once_all_have_met(several) -> None:
    kept = several(2)
    hosts = {place.laddr.ip for place in psutil.Process().net_connections() if place.status == psutil.CONN_LISTEN}
    assert hosts == set()
    assert len(kept) == 2


LOSES = """
import os, signal, sys, torch
from tests.workers.together import meet
ranks = meet(1, 2, int(sys.argv[1]))
ranks.told(0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_rank_that_loses_another_is_told_and_ends(monkeypatch) -> None:
    monkeypatch.setattr("srl.workers.ranks.LOST_SECONDS", 0.0)
    listener = Listener()
    other = subprocess.Popen([sys.executable, "-c", LOSES, str(listener.address[1])])
    ranks = meet(0, 2, listener.address[1], os.dup(listener.fds()[0]))
    listener.close()
    assert ranks.told(0) == 0
    vote = ranks.gather(np.zeros(1))
    assert select.select(ranks.fds(), [], [], 10)[0]
    with pytest.raises(Closed):
        vote.result()
    with pytest.raises(Closed):
        ranks.moments(torch.ones(2, 2))
    other.wait()


def test_a_part_too_small_for_its_minibatches_is_refused(several) -> None:
    def ask(ranks: Ranks) -> str:
        policy = ActorCritic().build(OBS, ACTION, MASK)
        batch = part_of(play(policy), 0, 2)
        with pytest.raises(UserError) as raised:
            PPO(minibatches=99).build(policy, ranks=ranks).step(batch, 0.0)
        return str(raised.value)

    assert all("only 2" in said and "ask for no more" in said for said in each(several(2), ask))


def test_once_all_have_met_nobody_can_knock_and_all_go_on(several) -> None:
    def listening() -> set[tuple[str, int]]:
        found = psutil.Process().net_connections("tcp")
        return {tuple(one.laddr) for one in found if one.status == psutil.CONN_LISTEN}

    before = listening()
    ranks = several(3)
    assert listening() <= before
    assert each(ranks, lambda rank: rank.told(rank.rank + 5)) == [5, 5, 5]
