"""Other sites: links that carry this instance's records to other brokers or groups.

records.py    what of a delivered batch goes, and under which numbers (pure)
secrets.py    what a link proves itself with
near_end.py   the link's end here: a client of this broker, without a socket
link.py       one destination: follows the log at its near end, publishes at the far one, acknowledges what that has stored
problems.py   links that carry nothing, as operators see them (pure)
links.py      all of them, as the policy says
"""
