"""Newest figures of brokers in Redis: snapshots and the last 15 minutes. Losing them does no harm.

resource_points.py  a snapshot's instance, transports and pools as flat records (pure)
seconds_ring.py     the last 15 minutes, second by second
latest_snapshot.py  a broker's newest large snapshot
redis_link.py       this process's connections to Redis
workers.py          queues without a worker, and queues that are stuck
"""
