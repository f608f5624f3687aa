"""Finds ranks that hang or that keep the others waiting."""
