"""Codecs without I/O: they turn bytes into frames and commands, and back.

They use no socket, clock or broker state.
native       frames of the native protocol
commands     commands of clients
replies      replies of the broker
field_info   names and fields of commands and replies, for errors and documents
text_mode    JSON-only mode for people with a WebSocket tool
names        checks of client names, topics and subscription ids
liveness     signs of life of a connection's peer
close_codes  reasons why a connection ends
stomp        STOMP frames, headers and destinations
"""
