"""Other sites: links that carry this instance's records to other brokers or groups.

link.py            one destination: follows the log, publishes at the far end, and records what that has stored
local_endpoint.py  the link's end here: a client of this broker, without a socket
link_manager.py    the links of an instance, as the policy names them
problems.py        links that carry nothing, as operators see them (pure)
"""
