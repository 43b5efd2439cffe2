"""Stages before the first and after the last role: facts and datasets, audit and report.

On one machine `areal run` does it; on a cluster the tools `prepare` and `finish` do, in pods of their own. Starts no
role and talks to none.
"""
