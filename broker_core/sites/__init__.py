"""Other sites: links that forward this instance's records to other brokers or groups.

link            one destination: follows the log, publishes there, and records what the destination has stored
local_endpoint  the link's client of this broker, without a socket
link_manager    the links of an instance, as the policy lists them
problems        links that forward nothing, as operators see them; pure
"""
