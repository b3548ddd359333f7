"""Forms: conversion of operators' input to plain values, on which services act. One module per page or part
of a draft.

fields.py            field types, and their groups on a page
draft_part.py        base class of forms for parts of a draft
limits.py            limits of the instance, and journaled topics
journaled_topics.py  text form of journaled topics, one per line
transports.py        address, access and limits of a transport
presets.py           XAP, ActiveMQ, Qpid, quotas
rule.py              custom rule
broker_access.py     users who may log on, entitlements
drafts.py            whole drafts: creating, importing, publishing
rule_sentence.py     custom rule as a sentence
destinations.py      links to other sites
client_table.py      saved views of the clients' table
messages.py          browsing, following and publishing of messages
preferences.py       appearance of pages for one operator
account.py           an operator's own password and second factor
alerts.py            alerts and their recipients
journals.py          journal actions
people.py            accounts, grants, tokens
login.py             login
"""
