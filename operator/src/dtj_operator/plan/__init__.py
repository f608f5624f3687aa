"""Decisions: pure functions of a snapshot. No clock, no client, no log, no randomness."""
