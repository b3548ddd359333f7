"""Presets: the settings of a system that operators know, compiled to rules."""
