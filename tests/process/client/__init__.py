"""Tests of the client that start processes."""
