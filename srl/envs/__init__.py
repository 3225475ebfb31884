"""Environments: many worlds stepped together, and the adapters that make them so."""
