"""Inputs that nobody meant to write."""
