"""Admission of a job: where its files are, what they tell, whether it may run, and the run directory it starts from.

`areal check`, `areal run`, `areal submit`, the tool `prepare` and the operator ask here. Starts no role.
"""
