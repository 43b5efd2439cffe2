"""What a role is told when it starts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from areal.plan.resolved import ResolvedJob, row_name


@dataclass(frozen=True)
class RoleContext:
    """Everything a role gets from outside. `stop` is set once it is asked to stop."""

    job: ResolvedJob
    role: str
    index: int  # which of several of this role
    port: int  # its gRPC port
    metrics_port: int
    token: str  # bearer token of the job
    stop: asyncio.Event
    incarnation: str  # unique to this start of the process
    bind: str = "127.0.0.1"  # the address that its servers listen on
    advertise: str = "127.0.0.1"  # the address under which others reach them

    @property
    def name(self) -> str:
        """The row's name: `worker-0`; roles that exist once have no index."""
        return row_name(self.role, self.index)
