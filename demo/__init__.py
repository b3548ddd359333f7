"""A real feed to try Sluice with: flights of 2013, and four subscribers that behave differently.

    flights.py      the flights that left New York, in the order they departed, each as one JSON message
    pace.py         number of flights due at a time; pure
    feed.py         publishes the flights, and continues where it stopped
    subscribers.py  a fast one, one with a filter, one that replays, one that stops reading

All of them are ordinary clients of the broker. `make demo` runs it; see also `python -m demo --help`.
"""
