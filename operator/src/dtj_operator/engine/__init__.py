"""Keys and coroutines: the queue and its workers, which know nothing of jobs."""
