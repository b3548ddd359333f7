"""A group: several brokers that carry one instance, on one log that an engine beside them replicates.

settings        membership of a broker, from the environment, and the configuration of NATS servers
state_machine   the effect of an entry of the shared log: pure, the same on every member
hash_chain      the hash over everything applied, by which members notice that they differ
member_status   reports of the members, and whether their journals are alike
engine_log      the interface of an engine, and the parts of a large entry
jetstream       NATS JetStream as that engine; the only module that imports `nats`
append_queue    entries that this member appends, one at a time, fenced by a later process of its name
replicated_log  the `CommitLog` of a member: out to the engine, in from it, into its own journal
reseed          a new log made of a journal; a member's journal made anew of another's
member          one member: its settings and its log
group_status    the group as one member sees it
problems        problems of a group, their beginning and their fix (pure)
"""
