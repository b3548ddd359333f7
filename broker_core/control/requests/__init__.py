"""Handlers of the control plane's requests, by subject."""
