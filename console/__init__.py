"""The control plane: what operators decide, what brokers report, and the pages and services between the two.

views and tasks call services (writes) and queries (reads); services call broker_link; models know nobody above them.
"""
