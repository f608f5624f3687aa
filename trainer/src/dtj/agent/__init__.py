"""The agent: process 1 of a pod, or the command on a laptop. It runs and watches the ranks."""
