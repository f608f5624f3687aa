"""The user's kubectl, through which everything that this package asks of the cluster passes."""
