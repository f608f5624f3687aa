"""What the agent tells others: /status, the terminal, the log, and the termination message."""
