"""Arguments of a role's `run`: resolved job, ports, token, stop event."""

import asyncio
from dataclasses import dataclass, field

from areal.method_access import NOBODY, MethodAccess
from areal.observe.traces import NO_TRACES, Traces
from areal.observe.waits import ProgressCounter
from areal.plan.cluster_names import Role
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import spec_of


@dataclass(frozen=True)
class RoleContext:
    """Everything a role gets from outside. `stop` is set once it is asked to stop."""

    resolved: ResolvedJob
    role: Role
    index: int  # which of several of this role
    port: int  # its gRPC port
    metrics_port: int
    token: str  # with which it calls others; empty for a role that calls nobody
    stop: asyncio.Event
    incarnation: str  # unique to this start of the process
    access: MethodAccess = NOBODY  # who may call its servers, and what
    bind: str = "127.0.0.1"  # the address that its servers listen on
    advertise: str = "127.0.0.1"  # the address under which others reach them
    progress: ProgressCounter = field(default_factory=ProgressCounter)  # of this process: the stall watch looks at it

    @property
    def name(self) -> str:
        """The row's name: `worker-0`; roles that exist once have no index."""
        return spec_of(self.role).row(self.index)

    traces: Traces = NO_TRACES  # of this process
