"""Benchmarks, side by side with peers in one run. `make bench` runs them all; docs/benchmarks.md has the figures."""
