"""STOMP 1.0, 1.1 and 1.2 without I/O: https://stomp.github.io.

frames          bytes to frames and back, escaped as the version requires
send_headers    headers of SENDs, parsed once for equal ones
destinations    destinations of RabbitMQ, ActiveMQ and Artemis
headers         single headers, and those of a SUBSCRIBE as the native command
replies         the broker's frames: CONNECTED, RECEIPT, ERROR
message_frames  batches as MESSAGE frames, joined from shared parts
"""
