"""Figures as operators write and read them. Pure.

format.py  numbers, sizes, durations and moments, as they are read
parse.py   sizes and intervals, as they are typed into forms
ages.py    ages, as commands, actions and the API take them: `7d`, `1h30m`
"""
