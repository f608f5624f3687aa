"""Whether the user can train on this cluster."""
