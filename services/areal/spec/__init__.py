"""The job file: its fields, its rules, its errors.

Owns what an RLJob may say. Promises that a job which loads and passes `check` can be run. Never starts anything, never
imports torch, and reads no file but the job's.
"""

from areal.spec.job import JobSpec, RLJob
from areal.spec.load import load_job

__all__ = ["JobSpec", "RLJob", "load_job"]
