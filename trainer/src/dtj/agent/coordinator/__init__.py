"""The coordinator of a job, in replica 0's agent: who takes part, and what follows from a loss."""
