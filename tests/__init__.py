"""Tests of the project; `runs_of` starts real runs, `budgets` checks sizes."""
