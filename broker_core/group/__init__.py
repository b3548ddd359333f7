"""A group: several brokers that carry one instance, on one log that an engine beside them replicates.

settings        what makes a broker a member, from the environment
order           what an entry of the shared log becomes here: pure, the same on every member
chain           the hash over everything applied, by which members notice that they differ
members         what the others say of themselves, and whether they are alike
ports           what is needed of an engine
packing         how an entry travels when it is large
jetstream       NATS JetStreamLog as that engine; the only module that imports `nats`
nats_config   the configuration of its servers
appending       what this member appends: one entry at a time, fenced by a later process of its name
waiting         what waits here on its way through the log: gathered, then in an entry
tasks           tasks that are ended together
replicated_log  the `CommitLog` of a member: out to the engine, in from it, into its own journal
reseed          a new log made of a journal; a member's journal made anew of another's
member          one member: its settings and its log
status          how one member sees its group
problems        what is wrong with it, since when, and what to do (pure)
"""
