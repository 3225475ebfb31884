"""Tests of srl/streams, file by file."""
