"""Hosts of an allocation: a job's roles on several machines without Kubernetes, started and stopped by a scheduler.

Owns which row runs on which host and under which address, and how a row becomes a step of Slurm or of Ray. Knows
nothing of what the roles do; their life (order, probes, restarts, drain) is that of `areal.local`.
"""
