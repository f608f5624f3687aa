"""What happens between a batch and the optimizer."""
