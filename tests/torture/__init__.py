"""Tests that run for hours, started by `make torture`; see docs/guarantees.md."""
