"""Rules, and how policies become them: scopes, presets of four systems, layers, staging, review."""
