"""Conversion of figures, codes and texts to and from the form that operators read and type. Pure functions.

format.py      numbers, sizes, durations and moments as text
parse.py       sizes and intervals as typed into forms
labels.py      labels of codes
bodies.py      bodies of messages
help_pages.py  help on each page, taken from the operator's guide
ages.py        ages as commands, actions and the API accept them: `7d`, `1h30m`
"""
