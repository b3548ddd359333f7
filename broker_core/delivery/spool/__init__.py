"""Backlog of an offlined client on disk: references into the journal, and copies of unjournaled batches."""
