"""Tests of srl/envs, file by file."""
