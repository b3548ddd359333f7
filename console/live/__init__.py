"""The newest figures: what a broker's snapshot says, and the last quarter of an hour in Redis. May be lost without harm.

resource_points.py  pure: a snapshot's instance, transports and pools as flat records
seconds_ring.py     the last quarter of an hour, second by second
redis_link.py       this process's connections to Redis
"""
