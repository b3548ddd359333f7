"""STOMP clients: frames on one side, the commands and replies that there are on the other.

session        one client's conversation, whatever carries it: passes its frames to the parts below
publishing     SEND and its receipts; transactions, held back until COMMIT
subscriptions  SUBSCRIBE, MESSAGE, ACK and NACK, and where dropped clients go on
replies        RECEIPT and ERROR, and MESSAGE frames on their way, a slice at a time
tcp            the transport of kind stomp; that of kind stomp-ws is in api/broker_websocket
"""
