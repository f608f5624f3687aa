"""`kubectl dtj`: submit, follow and steer DistributedTrainingJobs.

It runs the user's own kubectl, so it has the user's rights and logins and nothing to configure, and needs
nothing on the cluster but the operator.
"""

__version__ = "0.1.0"
