"""Figures, words and texts as operators write and read them. Pure.

format.py      numbers, sizes, durations and moments, as they are read
parse.py       sizes and intervals, as they are typed into forms
labels.py      what codes are called
bodies.py      bodies of messages
help_pages.py  the help on each page, made of the operator's guide
ages.py        ages, as commands, actions and the API take them: `7d`, `1h30m`
"""
