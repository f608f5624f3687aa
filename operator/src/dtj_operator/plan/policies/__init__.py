"""One decision per module: a function of a snapshot that returns a verdict or None."""
