"""Access control of the control plane, below models and services.

rights.py          grants as data, and the rule that decides whether they cover an action
last_used.py       last use of sessions and tokens, in memory and in Redis
login_limit.py     limits on failed logins and on concurrent password hashing
networks.py        IP addresses and networks, and clients behind proxies
policy_secrets.py  redaction of password and token hashes in policy documents (pure)
"""
