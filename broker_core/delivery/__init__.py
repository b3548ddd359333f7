"""What waits for a client, what becomes of it, and where the client stands.

account       what became of every message that was for a subscription; everything that is said of it reads this
backlog       one client's deliveries: outbox and lanes in memory, spool on disk, in flight below the socket
gone          what one client will not get
earliest      the earliest of many moments that change often
outbox        what waits in memory, in order; entry: one delivery
lane          the waiting place of a subscription that can't share the outbox; lanes: those of one client
window        acknowledgements; in_flight: what was sent without a window
conflation    the last of each key (pure); conflating: carried out for a subscription
latest        the same for what waits already; would_be: what it would replace, where a rule only looks
lifecycle     a client's states as one table
offline       its time on disk; drain: the way back
spool         an offlined client's backlog on disk
delays        how long records took to a socket, as percentiles
ledger        every interval that a subscription will not get, and why
fair_share    how replays spare live delivery, and share what is left
unread        whether a peer reads what its kernel takes
turns         one line for whoever would keep the loop for longer than others should wait
shared        one batch on its way to many; piece: what one subscription is given of a batch of the log
receiver      who gets what matches
sink          what a transport must offer
ports         what this room needs of others
"""
