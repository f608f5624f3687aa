"""What must hold whatever happens to the operator, and a witness that watches whether it does."""
