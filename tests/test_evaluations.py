"""Every evaluation that is due is done once, whoever is killed meanwhile; the last version is evaluated in the end."""

import math

from srl.evaluations import Evaluations
from srl.launchers.plan import Task
from srl.metrics import STEPS
from srl.recipes.ppo import ppo

EVAL = Task("evaluator", "eval", 0)
OTHER = Task("evaluator", "eval", 1)


def made(count=1, every=100):
    asked = []
    experiment = ppo(eval_every=every)
    object.__setattr__(experiment.actors["eval"], "count", count)
    return Evaluations(experiment, asked.append), asked


def row(steps, mean):
    return {STEPS: steps, "eval/mean_reward": mean}


def test_it_is_due_when_training_crosses_a_multiple():
    evaluations, asked = made()
    evaluations.trained(0, 99)
    assert (asked, evaluations.owed) == ([], {})
    evaluations.trained(99, 120)
    assert (asked, evaluations.owed) == ([EVAL], {EVAL: 120})
    evaluations.heard(EVAL, 130, 5.0)
    assert evaluations.owed == {}
    assert (evaluations.last, evaluations.best) == (5.0, 5.0)
    evaluations.trained(120, 199)
    assert asked == [EVAL]


def test_a_result_of_older_weights_is_not_the_one_that_is_due():
    evaluations, _ = made()
    evaluations.trained(0, 100)
    evaluations.trained(100, 200)
    evaluations.heard(EVAL, 100, 5.0)
    assert evaluations.owed == {EVAL: 200}
    evaluations.heard(EVAL, 200, 4.0)
    assert evaluations.owed == {}
    assert (evaluations.last, evaluations.best) == (4.0, 5.0)


def test_who_lives_again_is_asked_again_only_if_it_owes_one():
    evaluations, asked = made()
    evaluations.lives_again(EVAL)
    assert asked == []
    evaluations.trained(0, 100)
    evaluations.lives_again(EVAL)
    evaluations.lives_again(Task("actor", "main", 0))
    assert asked == [EVAL, EVAL]


def test_in_the_end_the_last_version_is_due_unless_it_has_a_result():
    evaluations, asked = made(count=2)
    evaluations.heard(OTHER, 150, 1.0)
    evaluations.finished(150)
    assert (asked, evaluations.owed) == ([EVAL], {EVAL: 150})


def test_a_run_that_goes_on_does_what_was_due_before():
    evaluations, asked = made()
    evaluations.go_back([row(100, 3.0), {STEPS: 250}], 250)
    assert (asked, evaluations.owed) == ([], {EVAL: 200})
    evaluations.ask_again()
    assert asked == [EVAL]
    assert (evaluations.last, evaluations.best) == (3.0, 3.0)


def test_a_run_that_goes_on_repeats_nothing():
    for steps in (205, 250, 99):
        evaluations, asked = made()
        evaluations.go_back([row(100, 9.0), row(205, 3.0)] if steps > 99 else [], steps)
        evaluations.ask_again()
        assert (asked, evaluations.owed) == ([], {})
        assert evaluations.best == (9.0 if steps > 99 else -math.inf)
    evaluations.go_back([row(205, 3.0)], 205)
    evaluations.finished(205)
    assert asked == []


def test_what_a_trainer_s_death_undid_is_due_again():
    evaluations, _ = made()
    evaluations.heard(EVAL, 300, 7.0)
    evaluations.go_back([row(100, 3.0)], 150)
    assert (evaluations.best, evaluations.owed) == (3.0, {})
    evaluations.finished(300)
    assert evaluations.owed == {EVAL: 300}


def test_each_of_several_evaluators_owes_its_own():
    evaluations, _ = made(count=2)
    evaluations.go_back([row(200, 3.0)], 250)
    assert evaluations.owed == {EVAL: 200, OTHER: 200}
    evaluations.go_back([row(200, 3.0), row(210, 3.0)], 250)
    assert evaluations.owed == {}
