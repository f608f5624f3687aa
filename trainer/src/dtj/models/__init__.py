"""Plain modules that know nothing of ranks."""
