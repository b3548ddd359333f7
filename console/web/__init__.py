"""What stands around every request and every login. Django calls it, by the names that the settings give.

middleware.py     request ids, the use of sessions, an audit event for every attempt to change something
session_store.py  sessions that end by themselves
lockout.py        the answer to whoever has typed too many wrong passwords
login_audit.py    logins, logouts and refused logins in the audit
"""
