"""Control plane: operators' configuration, brokers' reports, and the pages and services between them.

Views and tasks call services (writes) and queries (reads). Services call broker_link. Models import none of
these.
"""
