"""Invariants that hold whatever happens to the operator, and a witness that checks them."""
