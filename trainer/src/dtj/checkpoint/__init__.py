"""State of a run on disk: one folder per saved step, either complete or absent."""
