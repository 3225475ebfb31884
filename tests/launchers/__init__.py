"""Tests of srl/launchers, file by file."""
