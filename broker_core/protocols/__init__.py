"""Sans-IO codecs: bytes in, frames and commands out. No socket, no clock, no state of the broker.

`native` holds the frames, `commands` what a client says, `replies` what the broker says, `fields` what these are called
and take, `text` the JSON-only mode for people with a WebSocket tool, `close_codes` why a connection ends,
`names` what may be called what.
"""
