"""The command `dtj`: its words, and the user's modules and recipes that they name."""
