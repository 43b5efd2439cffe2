"""Ray's side of a run on hosts: nodes reserved together, and on each an actor that starts and signals rows' programs.

Each row's step is a process beside the run, as on Slurm, that calls the actor of its host. Rows are asked to stop by
messages: whatever Ray itself kills is gone within two seconds, checkpoint or not. No actor is ever started again: a
host without its own is a lost host. The reservation ends with the run's process.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any
from uuid import uuid4

from areal.distribution import missing_package
from areal.errors import ConfigError
from areal.hosts.placement import ENV_HOST, ENV_RANK, Host, RayRun
from areal.nvidia import VISIBLE
from areal.processes.exits import SIGNALLED

_ANSWER_S, _LOOK_S, _CHUNK = 3.0, 10, 1 << 16
_LOST = SIGNALLED + signal.SIGKILL  # how a program ended whose host is lost


class HostActor:
    """Starts programs on its node, and signals them. Needs nothing of this project where it runs."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}

    async def run(self, row: str, command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[bytes | int]:
        """Start a row's program; its output as it comes, then its exit code."""
        if VISIBLE in os.environ:  # as Ray has given GPUs to this actor
            env = {**env, VISIBLE: os.environ[VISIBLE]}
        process = await asyncio.create_subprocess_exec(*command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
        self._running[row] = process
        assert process.stdout is not None
        while chunk := await process.stdout.read(_CHUNK):
            yield chunk
        yield await process.wait()

    async def signal(self, row: str, number: int) -> int:
        """Send a signal to the row's program; answers to how many."""
        if (process := self._running.get(row)) is None or process.returncode is not None:
            return 0
        process.send_signal(number)
        return 1


def _connected(address: str, namespace: str) -> Any:
    """Ray's module, connected. Raises ConfigError where Ray, or its cluster, isn't there."""
    try:
        import ray
    except ImportError as error:
        raise missing_package(error, "ray") from None
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Ray cluster at {address}: {error}", fix="say --ray address=HOST:PORT") from None
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a cluster's own Python may have no areal
    return ray


def reserve(options: Sequence[str], say: Callable[[str], None]) -> tuple[RayRun, list[Host]]:
    """Reserve nodes, all or none, and start an actor on each; the node of this process comes first.

    `options`: `nodes=2`, `cpus=16` and `gpus=8` of each, `address=HOST:PORT`. Without cpus or gpus, as many as each of
    the largest nodes has.
    """
    asked = {key: value for key, _, value in (option.lstrip("-").partition("=") for option in options)}
    address, numbers = asked.pop("address", "auto"), {"nodes": "1", **asked}
    known = numbers.keys() <= {"nodes", "cpus", "gpus"} and all(map(str.isdecimal, numbers.values()))
    if not known or numbers["nodes"] == "0":
        raise ConfigError(f"--ray {' '.join(options)} can't be read", fix="write --ray nodes=2, or cpus, gpus, address")
    count, run = int(numbers["nodes"]), RayRun(address, f"areal-{uuid4().hex[:12]}")
    ray = _connected(run.address, run.namespace)
    from ray.util.placement_group import placement_group, placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if len(there) < count and not {"cpus", "gpus"} <= asked.keys():
        fix = "lower nodes; or say cpus and gpus, where the cluster grows by itself"
        raise ConfigError(f"Ray has {len(there)} nodes, {count} are asked for", fix=fix)
    largest = sorted(there, key=lambda has: (has.get("GPU", 0), has.get("CPU", 0)))[-count:]
    shares = {kind: int(min(has.get(kind, 0) for has in largest)) for kind in ("CPU", "GPU")}
    shares |= {kind: int(asked[key]) for kind, key in (("CPU", "cpus"), ("GPU", "gpus")) if key in asked}
    bundle = {kind: share for kind, share in shares.items() if share} or {"CPU": 1}
    group = placement_group([bundle] * count, strategy="STRICT_SPREAD")
    while not group.wait(_LOOK_S):
        say(f"waits for {count} nodes with {bundle} free on each: `ray status` shows what there is")
    nodes = {node["NodeID"]: node for node in ray.nodes()}
    placed = [(at, nodes[one]) for at, one in placement_group_table(group)["bundles_to_node_id"].items()]
    own, hosts = ray.get_runtime_context().get_node_id(), []
    for at, node in sorted(placed, key=lambda one: one[1]["NodeID"] != own):
        name = f"{node['NodeManagerHostname']}-{node['NodeID'][:6]}"
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
        actor = ray.remote(max_restarts=0, num_cpus=shares["CPU"], num_gpus=shares["GPU"])(HostActor)
        _kept.append(actor.options(name=name, scheduling_strategy=place).remote())  # without a handle Ray ends it
        hosts.append(Host(name, node["NodeManagerAddress"], node["NodeManagerPort"], shares["CPU"] or 1, shares["GPU"]))
    return run, hosts


_kept: list[Any] = []


def _signal(hosts: Iterable[str], row: str, number: int) -> list[int]:
    """Answers of these hosts' actors to a signal for a row; of a lost host there is none."""
    import ray

    asked, found = [], []
    for host in hosts:
        with suppress(ValueError):  # its actor is gone
            asked.append(ray.get_actor(host).signal.remote(row, number))
    for one in asked:
        with suppress(ray.exceptions.RayError):
            found.append(ray.get(one, timeout=_ANSWER_S))
    return found


def answers(host: Host) -> bool:
    """The host's actor answers. A lost node is called dead by Ray itself after a quarter of a minute."""
    return _signal([host.name], "", 0) == [0]


class RayStep:
    """A row's programs, by the actors of its hosts."""

    answers = staticmethod(answers)

    def __init__(self, run: RayRun, row: str, hosts: Iterable[str]) -> None:
        self._ray, self._row, self._hosts = _connected(run.address, run.namespace), row, list(hosts)

    def signal(self, name: str) -> int:
        """Send a signal to the row's programs wherever they are; answers to how many."""
        return sum(_signal(self._hosts, self._row, signal.Signals[f"SIG{name}"].value))

    def run(self, hosts: Sequence[Host], gpus: bool, command: Sequence[str]) -> int:
        """Run the command on these hosts to its end, and end all when one fails; answers the first exit code not 0."""
        codes: SimpleQueue[int] = SimpleQueue()
        for rank, host in enumerate(hosts):
            env = {**os.environ, ENV_HOST: host.name, ENV_RANK: str(rank)}
            Thread(target=self._follow, args=(host, command, env, codes), daemon=True).start()
        failed = 0
        for _ in hosts:
            if (code := codes.get()) and not failed:
                failed = code
                self.signal("KILL")
        return failed

    def end(self) -> None:
        """End a step that no signal reaches."""
        sys.exit(SIGNALLED + signal.SIGTERM)

    def _follow(self, host: Host, command: Sequence[str], env: Mapping[str, str], codes: "SimpleQueue[int]") -> None:
        """Write what the program says to this process's output, until it ends or its host is lost."""
        code = _LOST
        try:
            actor = self._ray.get_actor(host.name)
            for part in actor.run.options(num_returns="streaming").remote(self._row, command, env):
                said = self._ray.get(part)
                if isinstance(said, int):
                    code = said
                else:
                    sys.stdout.buffer.write(said)
                    sys.stdout.flush()
        except (ValueError, self._ray.exceptions.RayError) as error:
            print(f"{self._row}: nothing is heard of it on {host.name}: {error}", flush=True)
        finally:  # whatever happened here: who waits for the code would wait for ever
            codes.put(code)
