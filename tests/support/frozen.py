"""Imported last by a process that others are forked from, so that they share its memory."""

from dtj.agent.rank.preload import share_with_forks

share_with_forks()
