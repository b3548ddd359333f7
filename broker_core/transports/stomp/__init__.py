"""STOMP clients: frames on one side, the commands and replies that there are on the other.

session       one client's conversation, whatever carries it
transactions  what a client holds back until it commits
outgoing      MESSAGE frames on their way, a slice at a time
tcp           the transport of kind stomp; that of kind stomp-ws is in api/broker_websocket
"""
