"""A pod's part: carries out the coordinator's orders and tells it about this pod's ranks."""
