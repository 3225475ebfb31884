"""Tests that reach a score: the quick ones always, the three-seed ones with `make learning`."""
