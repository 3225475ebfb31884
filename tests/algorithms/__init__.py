"""Tests of srl/algorithms, file by file."""
