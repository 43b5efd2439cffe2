"""The job file: its fields, its rules, its errors.

Owns what an RLJob may say. Promises that a job which loads and passes `check` can be run. Never starts anything, never
imports torch, and reads no file but the job's.
"""

from areal.spec.check import RULES, check, refuse
from areal.spec.explain import explain
from areal.spec.job import JobSpec, RLJob
from areal.spec.load import job_from_object, load_job
from areal.spec.locality import for_clusters_only
from areal.spec.rules import Facts, Finding, Severity

__all__ = [
    "RULES", "Facts", "Finding", "JobSpec", "RLJob", "Severity", "check", "explain", "for_clusters_only",
    "job_from_object", "load_job", "refuse",
]  # fmt: skip
