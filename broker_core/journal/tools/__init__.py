"""Reading a log without a broker, for commands and people: inspect, search, locate, count."""
