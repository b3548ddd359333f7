"""Compilation of policies to rules: scopes, presets of four systems, layers, staged revisions, policy review."""
