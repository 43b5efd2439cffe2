"""Every object that a job has on a cluster, as plain dicts. Pure: no clock, no API server; chance only in Secrets.

`foundation` comes before the first pod, `access_secret` is created once, `prepare_job` runs before `workloads`,
`finish_job` after them.
"""

from areal_operator.operator.children.foundation import access_secret, foundation, read_snapshot, snapshot_hash
from areal_operator.operator.children.kueue import quota_request
from areal_operator.operator.children.wanted import JobBlueprint
from areal_operator.operator.children.workloads import finish_job, prepare_job, workloads

__all__ = [
    "JobBlueprint",
    "access_secret",
    "finish_job",
    "foundation",
    "prepare_job",
    "quota_request",
    "read_snapshot",
    "snapshot_hash",
    "workloads",
]
