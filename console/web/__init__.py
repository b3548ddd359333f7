"""What stands around every request and every login. Django calls it, by the names that the settings give.

client_address.py who asks, where proxies stand before the console
login_gate.py     logins limited by address, across names; passwords are hashed in turns
middleware.py     request ids, the use of sessions, an audit event for every attempt to change something
session_store.py  sessions that end by themselves, under hashes of their keys
lockout.py        the answer to whoever has to wait before a login is looked at
login_audit.py    logins, logouts and refused logins in the audit
"""
