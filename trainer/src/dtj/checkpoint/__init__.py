"""State of a run on disk: a folder a step, whole or not there."""
