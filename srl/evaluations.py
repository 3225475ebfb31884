"""Which evaluations a run owes: each that is due is done, whoever is killed meanwhile.

    training has crossed a multiple of `every`     its evaluators owe one, and are asked
    a result of weights as new as that             it is done
    an evaluator lives again                       it is asked again, if it owes one
    a run goes on from a checkpoint                they are asked, if what was due before has no result
    training is over                               they owe one of the last version

An evaluator that is replaced begins its episodes again, with the newest weights. Nothing here knows how one is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from srl.experiment import Evaluate, Experiment
from srl.launchers.plan import Task, tasks_of
from srl.metrics import STEPS


class Evaluations:
    """The evaluations of one run."""

    def __init__(self, experiment: Experiment, ask: Callable[[Task], None]) -> None:
        self._ask = ask
        self._every: dict[Task, Evaluate] = {}
        for task in tasks_of(experiment):
            if (evaluate := experiment.actors[task.group].evaluate if task.kind == "evaluator" else None) is not None:
                self._every[task] = evaluate
        self._done: dict[Task, int] = {}
        """The steps of the weights that each has evaluated last."""
        self.owed: dict[Task, int] = {}
        """The steps that the weights must have which each is to evaluate."""
        self.last: float | None = None
        self.best = -math.inf

    def trained(self, before: int, after: int) -> None:
        """Training went on from so many steps to so many."""
        for task, evaluate in self._every.items():
            if before // evaluate.every != after // evaluate.every:
                self._owe(task, after)

    def finished(self, steps: int) -> None:
        """Training is over after so many steps."""
        for task in self._every:
            if self._done.get(task, -1) < steps:
                self._owe(task, steps)

    def _owe(self, task: Task, steps: int) -> None:
        self.owed[task] = steps
        self._ask(task)

    def heard(self, task: Task, steps: int, mean: float) -> None:
        """An evaluator has a result."""
        self._done[task] = steps
        self.last, self.best = mean, max(self.best, mean)
        if steps >= self.owed.get(task, math.inf):
            del self.owed[task]

    def lives_again(self, task: Task) -> None:
        """A worker was replaced."""
        if task in self.owed:
            self._ask(task)

    def go_back(self, rows: Sequence[dict[str, Any]], steps: int) -> None:
        """The run goes on from a checkpoint; these rows of metrics lead to it."""
        found = [row for row in rows if "eval/mean_reward" in row]
        means = [row["eval/mean_reward"] for row in found]
        self.last, self.best = (means[-1] if means else None), max(means, default=-math.inf)
        self._done, self.owed = {}, {}
        for task, evaluate in self._every.items():
            due = steps // evaluate.every * evaluate.every
            # Rows do not say whose they are; a result of each is enough.
            newest = sorted((row[STEPS] for row in found), reverse=True)[: len(self._every)]
            if len(newest) == len(self._every) and newest[-1] >= due:
                self._done[task] = newest[-1]
            elif due:
                self.owed[task] = due

    def ask_again(self) -> None:
        """The workers have started: ask those that owe something."""
        for task in self.owed:
            self._ask(task)
