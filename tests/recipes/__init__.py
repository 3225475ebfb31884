"""Tests of srl/recipes, file by file."""
