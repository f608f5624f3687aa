"""Samples: in which order, and which of them are this rank's."""
