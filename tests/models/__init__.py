"""Tests of srl.models."""
