"""What is tried for hours rather than in each run of the tests: `make torture`. See docs/guarantees.md."""
