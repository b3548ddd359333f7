"""STOMP 1.0, 1.1 and 1.2 without a socket: https://stomp.github.io.

frames         bytes to frames and back, escaped as the version has it
heads          heads of SENDs, read once for those that are alike
destinations   what destinations name, in RabbitMQ's, ActiveMQ's and Artemis' words
reading        what single headers say
subscribing    the headers of a SUBSCRIBE as the command that there is
answers        what the broker says: CONNECTED, RECEIPT, ERROR
messages       batches as MESSAGE frames, joined and not built
"""
