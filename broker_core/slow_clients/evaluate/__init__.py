"""Judging: signals in, decisions out, each with its explanation. Pure, shared with previews and back-tests."""
