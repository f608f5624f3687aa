"""Alternatives to averaging exact gradients in every step: less often, compressed, or later."""
