"""Train one PyTorch model on one laptop or on many nodes."""
