"""STOMP 1.0, 1.1 and 1.2 without a socket: https://stomp.github.io.

frames          bytes to frames and back, escaped as the version has it
send_headers    headers of SENDs, read once for those that are alike
destinations    what destinations name, in RabbitMQ's, ActiveMQ's and Artemis' words
headers         single headers, and those of a SUBSCRIBE as the native command
replies         the broker's frames: CONNECTED, RECEIPT, ERROR
message_frames  batches as MESSAGE frames, joined and not built
"""
