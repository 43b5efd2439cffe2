"""Callers of each role: on which port, what for, and which gRPC methods their tokens open.

The one source of what servers refuse, of the NetworkPolicies and of the table in docs/security.md. A method that isn't
here is open to nobody. Pure.
"""

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


REDIS_CALLERS = (
    Caller(Role.CONTROLLER, "main", "the ledger"),
    Caller(Role.TRAINER, "main", "takes batches from the ledger"),
    Caller(Role.WORKER, "main", "adds samples to the ledger"),
)
_TRAINER_METHODS = (
    "Rollout/Train", "Rollout/AttachTrainer", "Rollout/AdvanceTrainer", "Rollout/PublishWeights",
    "Rollout/ProposeTombstone",
)  # fmt: skip
CONTROLLER_CALLERS = (
    Caller(Role.WORKER, "grpc", "asks for work", methods=("Rollout/Work",)),
    Caller(Role.GENERATION, "grpc", "registers, learns which weights to serve", methods=("Rollout/Serve",)),
    Caller(Role.TRAINER, "grpc", "publishes weights, moves the cursor", methods=_TRAINER_METHODS),
    Caller(
        Outsider.OPERATOR, "grpc", "progress, hot fields", methods=("Rollout/GetRolloutStatus", "Rollout/SetHotFields")
    ),
)
_BROADCAST = "weights by a process group, on ports that torch chooses"
GENERATION_CALLERS = (
    Caller(Role.WORKER, "grpc", "makes tokens", methods=("Generation/Generate",)),
    Caller(Role.TRAINER, None, _BROADCAST, only="group"),
    Caller(Role.GENERATION, None, _BROADCAST, only="group"),
    Caller(Role.GENERATION, "grpc", "reads versions that another has", only="fetch", methods=("VolumeFiles/ReadFile",)),
)
TRAINER_CALLERS = (
    Caller(Role.TRAINER, None, "rendezvous and collectives, on ports that torch chooses"),
    Caller(Role.GENERATION, None, _BROADCAST, only="group", methods=("WeightGroup/Join",)),
    Caller(Outsider.OPERATOR, "grpc", "progress, checkpoints", methods=("TrainerControl/GetTrainerStatus",)),
)

SCORE = ("Reward/Score",)
FILES = ("VolumeFiles/ListFiles", "VolumeFiles/ReadFile")
BOXES = tuple(
    f"Boxes/{name}"
    for name in (
        "CreateBox", "RunInBox", "ReadBoxFile", "WriteBoxFile", "RenewBox", "CloseBox", "HoldBoxes", "CountBoxes",
    )
)  # fmt: skip
GATEWAY_CALLERS = (
    Caller(Role.WORKER, "grpc", "answers the calls of its sessions", methods=("Gateway/Drive",)),
    Caller(Role.WORKER, "http", "agents that it runs"),
    Caller(Outsider.AGENTS, "http", "agents in pods of the user"),
)
