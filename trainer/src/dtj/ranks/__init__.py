"""What a rank is among the others: its place, its process groups, and how all agree and exchange data."""
