"""`dtj run -f job.yaml --local`: the replicas of a job as processes of this machine, without a cluster.

manifest.py   what of the job applies here, and what does not
fields.py     reads a field, and knows which ones were not read
replicas.py   starts the replicas and replaces those that are lost
"""
