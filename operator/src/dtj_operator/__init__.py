"""The operator for DistributedTrainingJob objects."""

VERSION = "0.1.0"
