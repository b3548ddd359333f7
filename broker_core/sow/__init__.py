"""State of the world: the last record of each key, computed from batches. Pure: no journal, no clock."""
