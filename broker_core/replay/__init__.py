"""Reading the log for subscriptions: cursors, replays, rates, stored positions and shared subscriptions."""
