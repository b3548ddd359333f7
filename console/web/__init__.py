"""Middleware, session store and login hooks of the console. Django loads them by the names in the settings.

client_address.py  client addresses behind proxies
login_gate.py      limit on failed logins per address; password backend with hashing slots
middleware.py      request ids, last use of sessions, audit events of write requests
session_store.py   sessions that expire when idle, stored under hashes of their keys
lockout.py         response to a login that must wait
login_audit.py     audit events of logins, logouts and failed logins
"""
