"""Who may do what in the control plane, below models and services.

rights.py          grants as data, and the one rule that says whether they cover an act
last_used.py       when sessions and tokens were last used, in memory and in Redis
policy_secrets.py  pure: hashes of passwords and tokens in policy documents, which nobody gets to see
"""
