"""A real feed to try Sluice with: the flights that left New York in 2013, and four subscribers of different manners.

    flights.py      the flights in the order they departed, each as one JSON message
    pace.py         pure: how many are due by now
    feed.py         publishes them, and goes on where it stopped
    subscribers.py  a fast one, one with a filter, one that replays, one that stops reading

Everything here is an ordinary client of the broker. `make demo` runs it; `python -m demo --help` runs it by hand.
"""
