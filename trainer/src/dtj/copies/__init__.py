"""Copies of each rank's state in memory that its agent owns, so that they outlive the rank.

`slot.py` is the format, `tree.py` turns state into it and back, `space.py` knows how much memory is left, and
`memory_copies.py` decides when to copy and what to load after a loss.
"""
