"""What would run inside a cluster's fake pods: real gRPC servers on loopback, found through `dial`.

Watches the pods of all jobs. Each controller's and trainer's pod whose main container runs has a server with a launcher
and with what the controller or rank 0 answer. It goes with that run of the container: a restarted container is another
server that has forgotten its epoch. Servers ask for the job's bearer token, read from its Secret as the pods do. Lives
in a thread with an event loop of its own, so that a test may wait for a command meanwhile; an operator in another
process finds the servers through `book`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from areal.net.server import GrpcServer
from areal.observe.waits import ProgressCounter, WaitRegistry
from areal.plan import cluster_names as names
from areal.plan.cluster_names import Role
from areal.plan.resolved import ResolvedJob
from areal.processes.service import SERVICE_NAME, LauncherService
from areal.v1 import operations_pb2_grpc as operations_grpc
from areal.v1 import rollout_pb2_grpc as rollout_grpc
from areal_operator.operator.children.files import resolved_text
from areal_operator.operator.observed import Pod
from kube.harness.client import Client, connection
from support.scripted_child import GANG_MEMBER, ScriptedChild
from support.scripted_run import RunController, RunTrainer, ScriptedRun

T = TypeVar("T")
NOBODY = 9  # the discard port: nothing listens there
_TICK_S = 0.05


@dataclass
class _Pod:
    """One run of a pod's main container."""

    incarnation: str
    namespace: str
    name: str
    role: Role
    run: ScriptedRun
    child: ScriptedChild
    rank: int
    server: GrpcServer
    port: int


class ScriptedPods:
    """The insides of all fake pods. Use as a context manager."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        self._kubeconfig = kubeconfig
        self.book = directory / "ports.json"
        """Incarnation of a pod → port of its server: the address book of operators in other processes."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name="scripted pods", daemon=True)
        self._client = Client(kubeconfig)
        self._pods: dict[tuple[str, str], _Pod] = {}
        self._runs: dict[tuple[str, str], ScriptedRun] = {}
        self._trained_at: dict[tuple[str, str], float] = {}
        self._stop = asyncio.Event()
        self._ports: dict[str, int] = {}
        self._deaf: set[str] = set()

    def __enter__(self) -> ScriptedPods:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        self._client.close()

    def run(self, namespace: str, job: str) -> ScriptedRun:
        """A job's run; made when first asked for, so that a test can prepare it before the job is created."""
        return self._runs.setdefault((namespace, job), ScriptedRun(namespace, job))

    def dial(self, namespace: str, job: str, pod: Pod, port: int) -> tuple[str, int]:
        """Where that pod answers; a port nobody listens on when nothing runs in it. From any thread."""
        return "127.0.0.1", self._ports.get(pod.incarnation, NOBODY)

    def cut(self, namespace: str, job: str, cut: bool = True) -> None:
        """The network between operators and the job's pods is cut, or whole again."""
        self.call(lambda: self._cut(f"{namespace}/{job}", cut))

    def end_trainer(self, namespace: str, job: str, code: int, rank: int = 0) -> None:
        """A trainer's process ends with a code; its launcher stays."""
        self.call(lambda: self._ended(namespace, job, code, rank))

    def finish_drain(self, namespace: str, job: str) -> None:
        """Let the checkpoint that `hold_drain` holds be written."""
        self.call(lambda: self._finished(namespace, job))

    def call(self, what: Callable[[], Any]) -> Any:
        """Run something in the servers' loop and wait for it; a coroutine function is awaited."""
        done: Future[Any] = Future()

        async def act() -> None:
            try:
                answer = what()
                done.set_result(await answer if asyncio.iscoroutine(answer) else answer)
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(act()))
        return done.result(timeout=20)

    async def _serve(self, role: Role, run: ScriptedRun, child: ScriptedChild, rank: int) -> tuple[GrpcServer, int]:
        token = await asyncio.to_thread(self._token, run.namespace, run.job)
        server = GrpcServer(role, token, waits=WaitRegistry(role), progress=ProgressCounter())
        launcher: Any = LauncherService({role.value: child})  # type: ignore[dict-item]
        server.add(operations_grpc.add_LauncherServicer_to_server, launcher, SERVICE_NAME)
        if role is Role.CONTROLLER:
            server.add(rollout_grpc.add_RolloutServicer_to_server, RunController(run), "areal.v1.Rollout")
        elif rank == 0:
            register = operations_grpc.add_TrainerControlServicer_to_server
            server.add(register, RunTrainer(run), "areal.v1.TrainerControl")
        port = await server.start(0)
        await server.set_ready(True)
        return server, port

    def _token(self, namespace: str, job: str) -> str:
        secret = self._client.get("v1", "Secret", namespace, names.access_secret(job))
        assert secret is not None, f"pods of {job} run before their Secret exists"
        return b64decode(secret["data"][names.token_key("operator")]).decode()

    def _resolved(self, namespace: str, job: str) -> ResolvedJob:
        mine = {names.LABEL_JOB: job}
        listed = self._client.list("v1", "ConfigMap", namespace)
        text = resolved_text(one for one in listed if mine.items() <= one["metadata"].get("labels", {}).items())
        assert text is not None, f"pods of {job} run before their ConfigMap exists"
        return ResolvedJob.parse(text, job)

    # The thread.

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._live())
        self._loop.close()

    async def _live(self) -> None:
        tasks = [asyncio.create_task(self._watch()), asyncio.create_task(self._train())]
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pod in list(self._pods.values()):
            await self._leave(pod)

    async def _train(self) -> None:
        while True:
            now = time.monotonic()
            for key, run in self._runs.items():
                if now - self._trained_at.get(key, 0.0) >= run.pace_s:
                    self._trained_at[key] = now
                    run.train(time.time())
            await asyncio.sleep(_TICK_S)

    async def _watch(self) -> None:
        url, tls, headers = connection(self._kubeconfig)
        path, labels = "/api/v1/pods", {"labelSelector": names.LABEL_JOB}
        async with httpx.AsyncClient(base_url=url, verify=tls, headers=headers, timeout=30.0, trust_env=False) as http:
            while True:
                with contextlib.suppress(httpx.HTTPError, KeyError):
                    listed = (await http.get(path, params=labels)).json()
                    await self._replace(listed["items"])
                    version = listed["metadata"]["resourceVersion"]
                    follow: dict[str, str | int] = {**labels, "watch": 1, "resourceVersion": version}
                    async with http.stream(
                        "GET", path, params=follow, timeout=httpx.Timeout(30.0, read=400.0)
                    ) as answer:
                        async for line in answer.aiter_lines():
                            event = json.loads(line)
                            if event["type"] == "ERROR":
                                break
                            await self._see(event["object"], gone=event["type"] == "DELETED")
                await asyncio.sleep(_TICK_S)

    async def _replace(self, listed: list[dict[str, Any]]) -> None:
        there = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in listed}
        for key, pod in list(self._pods.items()):
            if key not in there:
                await self._leave(pod)
        for obj in listed:
            await self._see(obj)

    async def _see(self, obj: dict[str, Any], gone: bool = False) -> None:
        metadata, status = obj["metadata"], obj.get("status", {})
        key = (metadata["namespace"], metadata["name"])
        main = next((c for c in status.get("containerStatuses", []) if c["name"] == names.MAIN_CONTAINER), {})
        runs = not gone and "running" in main.get("state", {})
        incarnation = f"{metadata['uid']}/{main.get('restartCount', 0)}"
        before = self._pods.get(key)
        if before is not None and (not runs or before.incarnation != incarnation):
            await self._leave(before)
        if runs and key not in self._pods:
            await self._enter(key, incarnation, metadata["labels"])

    async def _enter(self, key: tuple[str, str], incarnation: str, labels: dict[str, str]) -> None:
        role, job = Role(labels[names.LABEL_ROLE]), labels[names.LABEL_JOB]
        if role not in (Role.CONTROLLER, Role.TRAINER):  # operators speak to no other role
            return
        run, rank = self.run(key[0], job), int(labels.get(names.LABEL_POD_INDEX, 0))
        if role is Role.CONTROLLER:
            child = ScriptedChild(role.value)
            run.begins(await asyncio.to_thread(self._resolved, key[0], job))
            run.controllers += 1
        else:
            child = run.trainers[rank] = ScriptedChild(
                role.value,
                GANG_MEMBER,
                on_start=lambda epoch: run.started(rank, epoch),
                on_drain=lambda: run.draining(time.time()),
            )
        child.start()
        server, port = await self._serve(role, run, child, rank)
        self._pods[key] = _Pod(incarnation, *key, role, run, child, rank, server, port)
        self._publish()

    async def _leave(self, pod: _Pod) -> None:
        del self._pods[pod.namespace, pod.name]
        if pod.role is Role.CONTROLLER:
            pod.run.controllers -= 1
        if pod.run.trainers.get(pod.rank) is pod.child:
            del pod.run.trainers[pod.rank]
        self._publish()
        await pod.server.stop(0)

    def _publish(self) -> None:
        pods = [pod for pod in self._pods.values() if f"{pod.namespace}/{pod.run.job}" not in self._deaf]
        self._ports = {pod.incarnation: pod.port for pod in pods}
        part = self.book.with_suffix(".part")
        part.write_text(json.dumps(self._ports))
        part.replace(self.book)

    def _cut(self, job: str, cut: bool) -> None:
        self._deaf = self._deaf | {job} if cut else self._deaf - {job}
        self._publish()

    def _ended(self, namespace: str, job: str, code: int, rank: int) -> None:
        self.run(namespace, job).trainers[rank].exit(code)

    def _finished(self, namespace: str, job: str) -> None:
        self.run(namespace, job).finish_drain(time.time())
