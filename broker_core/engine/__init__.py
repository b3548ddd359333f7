"""The way of a message, and of a decision: dispatch, settle, enforce.

engine               the rooms, put together
dispatch             publish → journal → match → queue
publisher_numbers    publishers' numbers: done, on their way to the disk, repeated
subscribing          where subscriptions begin and end
settle               at the end of a turn: send, measure, decide
subscription_view    a live subscription as rules see it
enforcement          what was decided is done
decisions            those made lately; events: the broker's own records
traffic              a look a second at clients that something waits for, for back-tests
chores               what is done for the journal once a second, in threads
watchdog             clients that could be sent what waits, and aren't
loop_monitor         a thread that reports stalls of the event loop
stalls               what a stall was: its cause (pure), and the newest ones
interpreter          what a process with a loop to keep asks of Python
log_subscribers      who reads the log, and what a policy takes from them
"""
