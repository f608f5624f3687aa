"""How one model is distributed over many ranks, and how they exchange less."""
