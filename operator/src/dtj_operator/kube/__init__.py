"""The only package that calls the API server."""
