"""Kubernetes: the operator of RLJobs, the API client under it, and a job's way from a machine to a cluster."""
