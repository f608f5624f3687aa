"""The command lines that users bring: launchers, and the programs that start them. Pure."""
