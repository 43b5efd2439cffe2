"""A job as a cluster would run it, without one: every role under its own `areal-launch`, on ports of loopback.

The job is resolved as for pods; then addresses become loopback ports and mounts become folders of the test. The test
plays kubelet (starts and kills pods) and operator (epochs, draining, hot fields). Started by root, pods are an
unprivileged user without a home, who may read everything and write only to the run directory and their scratch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import psutil
from areal.admit.cluster import redis_files, resolve_for_pods, roles_of
from areal.plan import Endpoints, ResolvedJob
from areal.plan.access import digests_text, secret_keys
from areal.plan.cluster_names import Role, password_key
from areal.plan.redis_conf import RedisPlaces, redis_text
from areal.plan.role_specs import ROLE_SPECS, redis_logins, spec_of
from areal.plan.roles import free_ports
from areal.spec import RLJob
from areal.v1 import operations_pb2 as operations
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2 as rollout
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from support.blocking_channel import connect_sync
from support.launchers import Launcher

TOKEN = "token-of-the-operator"
NOBODY = 65532
_PASSWORDS = {user: f"password-of-{user}" for user in redis_logins().values()}
_KEEP = ("PATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")  # all that a container gets of our environment


@dataclass
class Pod:
    """One started pod; `process` is its first process."""

    name: str
    process: subprocess.Popen[bytes]
    launcher: Launcher
    last_words: Path

    def below(self, *words: str) -> list[psutil.Process]:
        """Processes of the pod whose command line holds all `words`."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(child.cmdline())
                if all(word in line for word in words) and "keeper.py" not in line:
                    found.append(child)
        return found


@dataclass
class Pods:
    """The pods of one job, and what an operator does to them."""

    root: Path
    job: RLJob
    recipe_source: str
    resolved: ResolvedJob = field(init=False)
    pods: dict[str, Pod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mounts = {name: self.root / name for name in ("job", "access", "run", "data", "tmp", "recipe", "ended")}
        for folder in self.mounts.values():
            folder.mkdir(parents=True)
        self.resolved = self._on_loopback(
            resolve_for_pods(self.job, namespace="team", uid="0f1e2d3c", recipe_source=self.recipe_source)
        )
        (self.mounts["job"] / "resolved.json").write_text(self.resolved.model_dump_json())
        conf, acl = redis_files(self.resolved, _PASSWORDS)
        places = RedisPlaces(
            "127.0.0.1", self.ports("redis", 0)["main"], self.mounts["data"], self.mounts["access"] / "users.acl"
        )
        assert "/areal/access/users.acl" in conf
        (self.mounts["job"] / "redis.conf").write_text(redis_text(self.resolved.spec.replay.budget_bytes, places))
        tokens = {key: f"{key}-of-the-pods" for key in secret_keys()} | {"token.operator": TOKEN}
        passwords = {password_key(user): word for user, word in _PASSWORDS.items()}
        secrets = {**tokens, "digests.json": digests_text(tokens), "users.acl": acl, **passwords}
        for key in {key for row in ROLE_SPECS.values() for key in row.secret_keys}:
            (self.mounts["access"] / key).write_text(secrets[key])
        if os.geteuid() == 0:
            for name in ("run", "data", "tmp", "ended"):
                os.chown(self.mounts[name], NOBODY, NOBODY)

    def _on_loopback(self, resolved: ResolvedJob) -> ResolvedJob:
        """The same job with other addresses and mounts; nothing else differs from a cluster's."""
        rows = [(role, index) for role, pods in roles_of(resolved).items() for index in range(pods)]
        if resolved.in_one_pod:  # each server has ports of its own in the trainer's pod
            rows += [(Role.GENERATION, index) for index in range(resolved.spec.generation.replicas)]
        wanted = [(role, index, purpose) for role, index in rows for purpose in spec_of(role).ports]
        ports: dict[str, dict[str, int]] = {}
        for (role, index, purpose), port in zip(wanted, free_ports(len(wanted)), strict=True):
            ports.setdefault(f"{role.value}-{index}", {})[purpose] = port

        def address(role: Role, purpose: str = "grpc") -> str | None:
            return f"127.0.0.1:{ports[f'{role.value}-0'][purpose]}" if f"{role.value}-0" in ports else None

        return resolved.model_copy(
            update={
                "run_dir": self.mounts["run"],
                "access_dir": self.mounts["access"],
                "recipe_source": self.mounts["recipe"] / "recipe.py" if resolved.recipe_source else None,
                "recipe_path": self.mounts["run"] / "recipe" / "recipe.py" if resolved.recipe_path else None,
                "redis_users": {user: self.mounts["access"] / password_key(user) for user in redis_logins().values()},
                "ports": ports,
                "bind": "127.0.0.1",
                "endpoints": Endpoints(
                    controller=address(Role.CONTROLLER) or "",
                    redis=address(Role.REDIS, "main"),
                    reward=address(Role.REWARD),
                    reward_custom=address(Role.REWARD_CUSTOM),
                    rendezvous=address(Role.TRAINER, "rendezvous"),
                ),
            }
        )

    def ports(self, role: str, index: int) -> Any:
        return self.resolved.ports_of(role, index)

    # ---- the kubelet

    def start(self, role: str, index: int = 0) -> Pod:
        """Start a pod; its name is `role-index`."""
        name = f"{role}-{index}"
        assert name not in self.pods or self.pods[name].process.poll() is not None, f"{name} runs"
        job = ["--job", str(self.mounts["job"] / "resolved.json")]
        launcher = Launcher(free_ports(1)[0], TOKEN)
        command = [sys.executable, "-m", "areal.processes.main", *job, "--role", role, "--port", str(launcher.port)]
        if role == "redis":
            command = [str(shutil.which("redis-server")), str(self.mounts["job"] / "redis.conf")]
        pod = Pod(name, self._container(name, command, index), launcher, self.mounts["ended"] / name)
        self.pods[name] = pod
        return pod

    def start_all(self, order: Iterable[str]) -> None:
        """Start every pod of the named roles."""
        pods = {role.value: count for role, count in roles_of(self.resolved).items()}
        for role in order:
            for index in range(pods[role]):
                self.start(role, index)

    def tool(self, role: str, timeout_s: float = 120.0) -> tuple[int, str]:
        """Run `prepare` or `finish`; answers its exit code and its last words."""
        (self.mounts["ended"] / f"{role}-0").unlink(missing_ok=True)
        job = ["--job", str(self.mounts["job"] / "resolved.json")]
        process = self._container(f"{role}-0", [sys.executable, "-m", "areal.processes.role", role, *job], 0)
        code = process.wait(timeout_s)
        words = self.mounts["ended"] / f"{role}-0"
        return code, words.read_text() if words.exists() else ""

    def _container(self, name: str, command: list[str], index: int) -> subprocess.Popen[bytes]:
        environment = {key: os.environ[key] for key in _KEEP if key in os.environ}
        environment |= {"AREAL_INDEX": str(index), "AREAL_POD_IP": "127.0.0.1", "AREAL_POD_NAME": name, "HOME": "/"}
        environment |= {"TMPDIR": str(self.mounts["tmp"]), "AREAL_TERMINATION_LOG": str(self.mounts["ended"] / name)}
        with (self.root / f"{name}.out").open("ab") as out:
            return subprocess.Popen(
                [*_as_nobody(), *command],
                env=environment,
                cwd="/",
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def stop(self, *names: str, timeout_s: float = 90.0) -> dict[str, int]:
        """SIGTERM to pods, all at once; answers their exit codes."""
        for name in names:
            self.pods[name].process.send_signal(signal.SIGTERM)
        return {name: self.pods[name].process.wait(timeout_s) for name in names}

    def kill_all(self) -> None:
        """End everything that still runs, whatever happened."""
        for pod in self.pods.values():
            if pod.process.poll() is None:
                family = psutil.Process(pod.process.pid).children(recursive=True)
                pod.process.kill()
                pod.process.wait(10)
                for process in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()

    def output(self, name: str) -> str:
        """What `kubectl logs` would show of all of a pod's starts."""
        return (self.root / f"{name}.out").read_text(errors="replace")

    def all_output(self) -> str:
        """The last lines of every pod, for a test that failed."""
        return "\n".join(
            f"==== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.root.glob("*.out")
        )

    # ---- the operator

    def trainers(self) -> list[Launcher]:
        """The launchers of the gang."""
        return [pod.launcher for name, pod in self.pods.items() if name.startswith("trainer-")]

    def rollout(self) -> rollout.GetRolloutStatusResponse:
        """The controller's status."""
        with connect_sync(self.resolved.endpoints.controller, TOKEN) as channel:
            return rollout_grpc.RolloutStub(channel).GetRolloutStatus(rollout.GetRolloutStatusRequest(), timeout=5)

    def set_hot(self, **fields: int) -> None:
        """Change hot fields."""
        with connect_sync(self.resolved.endpoints.controller, TOKEN) as channel:
            rollout_grpc.RolloutStub(channel).SetHotFields(rollout.SetHotFieldsRequest(**fields), timeout=5)

    def trainer(self) -> operations.GetTrainerStatusResponse:
        """The first trainer's status."""
        with connect_sync(f"127.0.0.1:{self.ports('trainer', 0)['grpc']}", TOKEN) as channel:
            stub = operations_grpc.TrainerControlStub(channel)
            return stub.GetTrainerStatus(operations.GetTrainerStatusRequest(), timeout=5)

    def step(self) -> int:
        """Batches trained so far; 0 while no trainer answers."""
        try:
            return int(self.trainer().step)
        except grpc.RpcError:
            return 0

    def until(self, what: str, ready: Callable[[], bool], timeout_s: float = 150.0) -> None:
        """Wait for `ready()`, asked ten times a second."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s:\n{self.all_output()}"
            time.sleep(0.1)


def _as_nobody() -> list[str]:
    """Started by root: become a user of no name, who may still read the interpreter wherever it is installed."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    ids = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]
