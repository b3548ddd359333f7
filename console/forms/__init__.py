"""What operators type, as plain values for services, which decide. One module a page, or a part of a draft.

fields.py            kinds of fields, and how a page groups them
draft_part.py        what the forms of a draft's parts share
limits.py            the instance's limits and what it journals
journaled_topics.py  journaled topics, one a line, in words
transports.py        where a transport listens, who may log on, its own limits
presets.py           XAP, ActiveMQ, Qpid, quotas
rule.py              a custom rule
broker_access.py     users who may log on, entitlements
drafts.py            whole drafts: making, importing, publishing one
rule_sentence.py     a custom rule as a sentence
destinations.py      other sites, and what goes there
client_table.py      columns and saved views of the clients' table
messages.py          which messages are browsed, followed or published
preferences.py       how one operator's pages look
account.py           an operator's own password and second factor
alerts.py            alerts and where they are sent
journals.py          which journal action, on what
people.py            operators: people, grants, tokens
login.py             name and password
"""
