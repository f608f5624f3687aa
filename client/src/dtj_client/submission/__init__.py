"""From a folder, a function or a file to a job with its code on the cluster."""
