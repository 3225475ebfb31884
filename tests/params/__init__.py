"""Tests of srl/params, file by file."""
