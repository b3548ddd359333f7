"""What reads the log without a broker, or for people: inspect, search, locate, count."""
