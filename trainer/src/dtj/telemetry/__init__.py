"""Log lines, metric files and what a rank reports to its agent."""
