"""A group: several brokers that carry one instance.

Their common log is ordered and replicated by a log service.

settings        membership of a broker, from the environment; configuration files for NATS servers
state_machine   applies an entry of the common log; pure, with the same result on every member
hash_chain      hash over everything applied; members compare it to notice that their journals differ
member_status   status messages of the other members, and the comparison of their journals
engine_log      interface of a log service, and the packed form of a large entry
jetstream       NATS JetStream as the log service; the only module that imports `nats`
append_queue    entries that this member appends, one at a time; fences an earlier process of its name
replicated_log  the `CommitLog` of a member: appends to the log service, reads it, writes its own journal
reseed          a new log made from a journal; a member's journal rebuilt from another member's
member          one member: its settings and its log
group_status    the group as one member sees it
problems        problems of a group, with their start and their fix; pure
"""
