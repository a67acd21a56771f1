"""Local training: schedules of mini-batches, and two ways to run them that give the same numbers."""
