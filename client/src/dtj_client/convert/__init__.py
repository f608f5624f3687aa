"""From a job of another system to a DistributedTrainingJob."""
