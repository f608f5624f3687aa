"""Recipes that need no download. Each is a function whose parameters are its command-line arguments."""
