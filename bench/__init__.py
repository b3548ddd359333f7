"""Benchmarks, side by side with other brokers in one run.

`make bench` runs all; docs/benchmarks.md has results.
"""
