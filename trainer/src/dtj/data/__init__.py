"""Samples: their order, and which of them this rank loads."""
