"""Tests of srl/workers, file by file."""
