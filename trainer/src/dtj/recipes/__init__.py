"""Recipes that need no download: each a function whose signature is its command line."""
