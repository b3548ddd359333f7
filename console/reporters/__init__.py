"""Reporters in the broker's process, which send its state to the control plane once a second.

snapshot_reporter.py  snapshots and decisions to the live feed; decisions, losses and reports to the database
event_reporter.py     events for which actions wait, as runs
start.py              policy and directories at the broker's start
database_thread.py    thread for calls into the database
"""
