"""What clients draw from their pools, kept exact; and the guard that has them judged."""
