"""The work queue and its workers. They handle keys and coroutines and know nothing about jobs."""
