"""STOMP clients: their frames are translated to commands, and replies to frames.

session        protocol state of one client: passes its frames to the parts below
publishing     SEND and its receipts; transactions, held back until COMMIT
subscriptions  SUBSCRIBE, MESSAGE, ACK and NACK, and resume points of closed clients
replies        RECEIPT and ERROR, and MESSAGE frames that are sent in slices
tcp            the transport of kind stomp; that of kind stomp-ws is in api/broker_websocket
"""
