"""One offlined client's backlog on disk: references into the journal, and copies of what isn't journaled."""
