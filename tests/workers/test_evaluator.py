"""Evaluation plays whole episodes, a share for each row, and does not prefer short ones."""

import math
from functools import partial

import numpy as np
import pytest
import torch

from srl.envs.base import make
from srl.envs.fake import Counting, NativeVector
from srl.memory import Memory
from srl.params.base import params_bytes
from srl.params.shm import Publisher, Reader
from srl.tree import spec_of
from srl.workers.evaluator import Episodes, Evaluator, play

from .literal import SHAPES, Scripted, timeline


@pytest.mark.parametrize(("rows", "wanted"), [(1, 1), (3, 7), (4, 8), (5, 2)])
def test_every_row_plays_its_share_and_no_more(rows, wanted):
    played = Episodes(rows, wanted)
    counts = [0] * rows
    for step in range(1000):
        if played.complete:
            break
        # Row b ends an episode every b + 1 steps.
        over = np.array([(step + 1) % (row + 1) == 0 for row in range(rows)])
        before = len(played.returns)
        played.add(np.arange(rows, dtype=float), over, np.ones(rows, bool), np.zeros(rows, bool))
        for value in played.returns[before:]:
            row = next(row for row in range(rows) if value == row * (row + 1))
            counts[row] += 1
    assert sum(counts) == wanted == len(played.returns) == len(played.lengths)
    assert counts == [wanted // rows + (row < wanted % rows) for row in range(rows)]


def test_short_episodes_are_not_preferred():
    # Row 0 plays 1, 20, 1, ... steps and row 1 plays 20, 1, 20, ...: half of all episodes are short.
    envs = make(partial(NativeVector, lengths=(1, 20)), 2)
    played = play(Scripted(), envs, SHAPES, episodes=12, seed=0, explore=False)
    assert sorted(played.lengths) == [1] * 6 + [20] * 6
    # Whoever took the first ones to end would have taken mostly short ones of the row that ends first.
    assert play(Scripted(), envs, SHAPES, episodes=2, seed=0, explore=False).lengths == [1, 20]


def test_a_step_that_only_resets_counts_for_no_episode():
    lengths, ends = (3, 1, 4), ("terminated", "truncated")
    envs = make(partial(Counting, lengths=lengths, ends=ends), 1)
    played = play(Scripted(), envs, SHAPES, episodes=6, seed=0, explore=True)
    rows = [row for row in timeline(lengths, ends, 60) if row["episode_length"]][:6]
    assert played.lengths == [row["episode_length"] for row in rows]
    assert played.returns == [row["episode_return"] for row in rows]


class Link:
    """Keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(message)


class Biased(Scripted):
    """Chooses the better action, when its weights say so."""

    def __init__(self, module):
        self._module = module

    def act(self, request):
        reply = super().act(request)
        return {**reply, "action": np.full_like(reply["action"], int(self._module.weight.item() > 0))}


@pytest.fixture
def best():
    """The best mean reward so far."""
    return -math.inf


@pytest.fixture
def bench(best):
    """An evaluator, what publishes its weights, what it said, and what it saved."""
    module = torch.nn.Linear(1, 1, bias=False)
    spec = {name: spec_of(tensor.numpy()) for name, tensor in module.state_dict().items()}
    memory, link, saved = Memory(params_bytes(spec)), Link(), []
    publisher, reader = Publisher(spec, memory), Reader(spec, memory, module)
    envs = make(partial(Counting, lengths=(2,)), 2)
    options = {"episodes": 4, "explore": False, "seed": 1, "best": best, "save_best": saved.append}
    evaluator = Evaluator(Biased(module), reader, envs, SHAPES, link, **options)

    def publish(version, weight):
        publisher.publish(version, 10 * version, {"weight": torch.full((1, 1), float(weight))})

    yield evaluator, publish, link.sent, saved
    evaluator.close()
    memory.close()


def evaluate(evaluator):
    evaluator.command({"do": "evaluate"})
    while evaluator.step():
        pass


def test_nothing_is_played_until_it_is_asked_for(bench):
    evaluator, publish, sent, _ = bench
    publish(1, 0)
    assert not evaluator.step()
    evaluate(evaluator)
    assert len(sent) == 1
    assert not evaluator.step()


def test_nothing_is_played_before_weights_are_published(bench):
    evaluator, publish, sent, _ = bench
    evaluate(evaluator)
    assert not sent
    publish(1, 0)
    while evaluator.step():
        pass
    assert [message["version"] for message in sent] == [1]


def test_the_newest_version_is_evaluated_and_the_best_is_saved(bench):
    evaluator, publish, sent, saved = bench
    for version, weight in ((1, 0), (2, 1), (3, 0), (4, 1)):
        publish(version, weight)
        evaluate(evaluator)
    assert [(m["version"], m["steps"], m["mean_reward"], m["best"]) for m in sent] == [
        (1, 10, 3.0, True),
        (2, 20, 203.0, True),
        (3, 30, 3.0, False),
        (4, 40, 203.0, False),
    ]
    assert [result["version"] for result in saved] == [1, 2]
    assert all((m["kind"], m["episodes"], m["mean_ep_length"]) == ("evaluation", 4, 2.0) for m in sent)


def test_weights_do_not_change_during_an_evaluation(bench):
    evaluator, publish, sent, _ = bench
    publish(1, 0)
    evaluator.command({"do": "evaluate"})
    evaluator.step()
    publish(2, 1)
    evaluator.command({"do": "evaluate"})
    while evaluator.step():
        pass
    assert [(m["version"], m["mean_reward"]) for m in sent] == [(1, 3.0), (2, 203.0)]


@pytest.mark.parametrize("best", [100.0])
def test_what_was_best_before_a_resume_stays_best(bench):
    evaluator, publish, sent, saved = bench
    publish(1, 0)
    evaluate(evaluator)
    assert (sent[0]["best"], saved) == (False, [])


def test_an_evaluator_knows_one_command(bench):
    with pytest.raises(ValueError, match="dance"):
        bench[0].command({"do": "dance"})
