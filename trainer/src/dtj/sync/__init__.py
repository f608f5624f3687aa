"""How often and how exactly ranks exchange what they learned."""
