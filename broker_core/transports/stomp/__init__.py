"""STOMP clients: frames on one side, the commands and replies that there are on the other.

session       one client's conversation, whatever carries it: its frames to those of these parts that they concern
talk          what the parts have in common: how something is said
sending       SEND and its receipts
transactions  what a client holds back until it commits
subscribed    SUBSCRIBE, MESSAGE, ACK and NACK
returning     where one goes on that a policy dropped
farewell      ERROR, and DISCONNECT's receipt
outgoing      MESSAGE frames on their way, a slice at a time
tcp           the transport of kind stomp; that of kind stomp-ws is in api/broker_websocket
"""
