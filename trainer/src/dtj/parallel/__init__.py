"""How one model is laid over many ranks."""
