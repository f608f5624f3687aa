"""`kubectl dtj` against a real API server."""
