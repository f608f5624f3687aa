"""Pid 1 of a pod, or the command on a laptop: starts the ranks, watches them, says how they ended."""
