"""The objects that a job owns, as dicts ready to be posted."""
