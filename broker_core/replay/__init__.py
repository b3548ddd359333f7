"""What subscriptions get from the log: where they stand, the reading, the pace, and positions that are kept."""
