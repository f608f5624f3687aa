"""The operator of DistributedTrainingJobs."""
