"""The contract of workers and the rollout controller: values, and their form on the wire."""
