"""What runs in the broker's process and carries what happens there to the control plane, once a second.

snapshot_reporter.py  snapshots and decisions to the live feed; decisions, losses and reports to the database
event_reporter.py     what actions wait for, as runs
"""
