"""Slow clients: signals and rules in, explained decisions out. Pure: no clock, no files, no sockets.

`accounts` keeps what each client takes of its pool, and has the `SlowClientGuard` (one per instance, called by
`engine.policy_loop`); `evaluate` judges, forecasts and explains; `rules` makes rules of policies.
"""
