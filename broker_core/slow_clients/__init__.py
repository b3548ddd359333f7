"""Slow-client handling: signals and rules in, explained decisions out.

The package is pure: it has no clock, files or sockets. Callers pass the time as an argument.

`accounts` counts the memory and disk that each client uses of its pool. Its `SlowClientGuard` (one per
instance) is called by `engine.policy_loop`. `evaluate` judges, forecasts and explains. `rules` compiles
policies to rules.
"""
