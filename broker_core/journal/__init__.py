"""The transaction log. `journal.Journal` is the way in for the broker; without a broker, `tools` and `reader`.

journal      the segments of one instance, in order
segment      FORMAT: names of the files, and the header before the batches
compressed   FORMAT: a segment as gzip members that can be sought in
index        what is known of a segment: sequence and time to offset, topics, holes
sidecar      FORMAT: the index as a file; topic_index: FORMAT of its second part, which stretches hold which topics; sealed_topics: which segments needn't be read for a topic
reader       whole, checked batches from an offset, over any form of a segment
scan         one segment from end to end
recovery     opening: torn tails, damage, numbering, publishers
commit_log   batches in, durable in one order out: many batches, one fdatasync, then the durable frontier moves
appender     the writing end; spares: segments made in advance; sealing: closing full ones
log_reader   the log by sequence, position and time; reader_thread: where all reading is done
swaps        archive, compress, remove: the broker's short part; maintenance: the worker's heavy part
retention    which segments an action may take (pure)
held         segments in memory, open files, pins; holdings: what each user's pins hold; leases: readers in other processes
removals     what was removed, with receipts
publishers   publisher sessions: which numbers are in the log, and who may add to them (pure)
acks         FORMAT: publisher sessions as a file; frontier: how far the log is durable, and which it is
files        every system call that changes a disk
tools        what reads the log without a broker: ls, verify, dump, repair, search
"""
