"""The operator for DistributedTrainingJob objects."""
