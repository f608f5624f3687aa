"""One rank as a process: how it is forked, what it runs, and what the kernel knows about it."""
