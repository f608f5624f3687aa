"""Messages between agents and the coordinator, and the checks of what arrives."""
