"""The objects that a job owns, as dicts ready for the API server."""
