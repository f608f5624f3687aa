"""The commands of `kubectl dtj`."""
