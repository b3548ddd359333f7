"""Paths of a message and of a decision: dispatch, policy loop, enforcement.

engine             wiring of one running instance, and its work once a second
dispatch           publish → journal → match → queue
publisher_numbers  publisher sequences: durable, in flight to the disk, repeated
subscriptions      start and end of subscriptions
policy_loop        end of an event-loop iteration: send, measure, decide
subscription_view  a live subscription as rules see it
enforcement        execution of decisions
system_records     the broker's own records: events, decisions, losses, traffic for back-tests
maintenance        journal tasks once a second, in threads; settings of the Python interpreter
watchdog           clients that could be sent their backlog, but are not
loop_monitor       a thread that reports stalls of the event loop
stalls             causes of stalls (pure), and the newest stalls
log_subscribers    subscribers of the log, and the effect of a policy on them
"""
