"""Transaction log: a broker uses `journal.Journal`, other programs use `tools` and `segment_reader`.

journal              the segments of one instance, in order
segment              FORMAT: names of the files, and the header before the batches
compressed_segment   FORMAT: a segment as gzip members, with random access by member
segment_index        the index of a segment: sequence and time to offset, topics, missing ranges
index_sidecar        FORMAT: the index as a file
topic_index          FORMAT: the topics of each range of a segment, the second part of that file
segment_reader       whole, checked batches from an offset, over any form of a segment; scans
recovery             opening: torn tails, damage, numbering, publishers
header_repair        restoring of a damaged segment header, proven by a checksum
commit_log           batches in, durable in one order out: one fdatasync for many batches
acceptance_clock     acceptance times, also while the machine's clock jumps
appender             the writing end; seals full segments
preallocation        segments made in advance
log_reader           the log by sequence, position and time, read in one thread
segment_replacer     archive, compress, remove: the broker's short part
removal_records      receipts of removals, for readers without a database
segment_copies       archive, compress: the worker's heavy part
retention            segments that an action may process (pure)
open_segments        segments in memory and open files
pins                 pins of segments, by user
reader_leases        readers in other processes
publishers           publisher sessions: numbers in the log, and the sessions that may add to them (pure)
publisher_sequences  FORMAT: publisher sessions as a file
frontier_file        FORMAT: how far the log is durable, and its identity
files                every system call that changes a disk
tools                commands that read the log without a broker: ls, verify, dump, repair, search
"""
