"""What the status and the Events say about a job, and when the status is written."""
