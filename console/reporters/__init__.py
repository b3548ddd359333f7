"""What runs in the broker's process and carries what happens there to the control plane, once a second.

broker.py  snapshots and decisions to the live feed; decisions, losses and reports to the database
events.py  what actions wait for, as runs
"""
