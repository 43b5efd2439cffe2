"""Callers of a role, as roles.yaml has them: on which port, what for, and which gRPC methods their tokens open."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from areal.plan.cluster_names import Role


class Outsider(StrEnum):
    """A caller that is no pod of the job."""

    OPERATOR = "operator"
    MONITORING = "monitoring"
    AGENTS = "agents"  # pods of the user in the job's namespace, by a label
    VIEWERS = "viewers"  # pods of namespaces with a label, which bring browsers: an ingress controller's


@dataclass(frozen=True)
class Caller:
    """Who may dial a role on a port, and what for. No port: any, in both directions."""

    who: Role | Outsider
    port: str | None  # one of the callee's ports, by name
    why: str
    only: Literal["", "group", "fetch"] = ""  # in jobs whose weights come by a process group, or are fetched
    methods: tuple[str, ...] = ()  # of areal.v1 that its token opens there; none where it speaks another protocol


LAUNCHER_METHODS = ("Launcher/GetChildStatus", "Launcher/RestartChild", "Launcher/DrainChild")
SERVER_METHODS = (
    "Waits/ListWaits", "Progress/GetProgress", "GenerationControl/GetAgentStatus", "GenerationControl/DrainAgent",
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)  # fmt: skip
"""What the operator's token opens on every launcher, and on every server that has it."""
