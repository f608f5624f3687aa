"""How one model is distributed over many ranks."""
