"""What happens in a step before the optimizer: backward, precision, checks; and evaluation."""
