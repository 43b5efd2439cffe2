"""Planning of a run: resolved paths and addresses, the table of roles, the layout of a run directory.

Owns what a run consists of and where it keeps what. Starts nothing.
"""

from areal.plan.context import RoleContext
from areal.plan.layout import RunLayout
from areal.plan.resolved import Endpoints, ResolvedJob
from areal.plan.table import RoleHost, RoleRow, role_table
from areal.plan.write import write_run

__all__ = ["Endpoints", "ResolvedJob", "RoleContext", "RoleHost", "RoleRow", "RunLayout", "role_table", "write_run"]
