"""Compilation of policies to rules: scopes, presets, layers, staged revisions and policy review."""
