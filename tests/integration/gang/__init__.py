"""Gang scheduling by a real kube-scheduler."""
