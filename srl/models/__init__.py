"""Policies and their networks: settings in config, implementations beside."""
