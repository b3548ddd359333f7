"""Backlogs and delivery states of clients: queues, windows, spools, conflation, accounts and losses.

account              counts of every message of a subscription, by outcome; all reports read this
backlog              deliveries of one client: in memory, on disk, in flight below the socket
backlog_figures      what rules, decisions and status read of these deliveries
discards             messages that one client will not get
entries              deliveries, batches that many clients share, and slices of a batch of the log
outbox               deliveries in memory, in order, and those in flight without a window
subscription_queues  queues of subscriptions that can't share the outbox; the earliest of many deadlines
window               acknowledgements of one subscription
conflation           the last message of each key in an interval
keep_latest          the last message of each key in the backlog
lifecycle            states of a client as one table
spooled_backlog      spooling to disk, and the drain back to live delivery
spool                the backlog of an offlined client on disk
latency              the time that records take to a socket, as percentiles
loss_ledger          every interval that a subscription will not get, and the cause
scheduling           time budgets on the event loop, and shares of replays beside live delivery
sink                 the interface of a transport, and the receive window of a peer
ports                interfaces that this package needs of others
"""
