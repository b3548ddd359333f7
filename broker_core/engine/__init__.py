"""The way of a message, and of a decision: dispatch, settle, enforce.

engine             the parts, put together
dispatch           publish → journal → match → queue
publisher_numbers  publishers' numbers: done, on their way to the disk, repeated
subscriptions      the beginning and the end of subscriptions
policy_loop        the end of a turn: send, measure, decide
subscription_view  a live subscription as rules see it
enforcement        decisions carried out
system_records     the broker's own records: events, decisions, and traffic for back-tests
maintenance        chores of the journal, once a second, in threads; settings of the Python interpreter
watchdog           clients that could be sent their backlog, and aren't
loop_monitor       a thread that reports stalls of the event loop
stalls             causes of stalls (pure), and the newest stalls
log_subscribers    subscribers of the log, and the effect of a policy on them
"""
