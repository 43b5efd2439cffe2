"""`areal run --on slurm` or `--on ray`: runs the job on the hosts of an allocation, or has Slurm queue it.

The run is that of `areal.local`, in the same directory, order, probes and budgets; each row's program is a step on its
host. Owns what differs: rows move when a host is lost; a warning of the scheduler (SIGTERM) drains all, to go on from
the checkpoint later: Slurm is asked to queue the job again.
"""

import asyncio
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence, Set
from dataclasses import replace

import orjson
from rich.console import Console

from areal.errors import ConfigError
from areal.files import write_atomically
from areal.hosts import ray_cluster, slurm
from areal.hosts.placement import Host, HostPlan, RayRun, place, resolve_for_hosts
from areal.local.run import run_job
from areal.local.staging import StagingRequest
from areal.local.supervisor import Supervisor
from areal.plan import ResolvedJob, RoleHost, RoleRow, RunLayout, role_table, write_run
from areal.plan.cluster_names import Role
from areal.plan.roles import role_instances
from areal.processes.core import TERMINAL
from areal.spec import RLJob, for_clusters_only, refuse
from areal.spec.load import job_from
from areal.spec.serving import SglangEngine
from areal.yaml_file.document import read_document

log = logging.getLogger("areal.hosts")

_LOOK_S = 3.0
_LOST_AFTER = 4  # looks without an answer: a slurmd that is only started anew is back before


class HostFleet:
    """The hosts of an allocation and which row is where. Without `ray` they are Slurm's."""

    def __init__(self, hosts: Sequence[Host], prefix: Sequence[str] = (), ray: RayRun | None = None) -> None:
        self.hosts = list(hosts)
        self.leaving = ""  # why the run gives its hosts back, to go on later
        self._plan = HostPlan({host.name: host for host in hosts}, {}, tuple(prefix), ray)
        self._answers = slurm.answers if ray is None else ray_cluster.answers

    def settle(self, resolved: ResolvedJob, lost: Set[str] = frozenset()) -> ResolvedJob:
        """Place the rows on hosts that aren't lost, and write the run directory with their addresses."""
        trainer, engine = resolved.spec.trainer, resolved.spec.generation.engine
        if resolved.spec.shared_cards:
            raise ConfigError("servers and trainer share GPUs on one machine only", fix="leave `placement: shared` out")
        gpus = {Role.TRAINER: trainer.gpus, Role.GENERATION: engine.gpus if isinstance(engine, SglangEngine) else 0}
        instances = role_instances(resolved.job, resolved.verifier)
        hosts = [host for host in self.hosts if host.name not in lost]
        rows = place(instances, hosts, gpus=gpus, gang=trainer.replicas, earlier=self._plan.rows)
        self._plan = replace(self._plan, rows=rows)
        write_atomically(resolved.layout.host_plan, orjson.dumps(self._plan))
        return write_run(resolve_for_hosts(resolved, rows, self.hosts))

    def rows(self, resolved: ResolvedJob) -> list[RoleRow]:
        """The table of roles with each command as a step on the row's host."""
        first = self.hosts[0].address
        here = RoleHost.here(needs_redis=resolved.endpoints.redis is not None)
        there = replace(here, gpus=None, host=first, interface="lo" if first.startswith("127.") else "")
        step = [sys.executable, "-m", "areal.hosts.step", str(resolved.layout.host_plan)]
        return [
            replace(row, command=[*step, row.name, *row.command], probe_host=self._address(row.name), held=())
            for row in role_table(resolved, there)
        ]

    def _address(self, row: str) -> str:
        return self._plan.of(row)[0].address

    async def watch(self, resolved: ResolvedJob, supervisor: Supervisor, addresses: dict[str, str]) -> None:
        """Move rows off lost hosts; on SIGTERM end the run so that it can go on elsewhere."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._leave, supervisor, "the allocation ends soon (SIGTERM)")
        silent, lost = dict.fromkeys((host.name for host in self.hosts), 0), set[str]()
        while not self.leaving:
            for host in self.hosts:
                silent[host.name] = 0 if await asyncio.to_thread(self._answers, host) else silent[host.name] + 1
            now = {name for name, looks in silent.items() if looks >= _LOST_AFTER}
            if now - lost:
                resolved = self._move(resolved, supervisor, addresses, now)
            lost = now
            await asyncio.sleep(_LOOK_S)

    def _leave(self, supervisor: Supervisor, reason: str) -> None:
        if self.leaving:
            supervisor.kill()
        self.leaving = self.leaving or reason
        supervisor.stop(reason)

    def _move(
        self, resolved: ResolvedJob, supervisor: Supervisor, addresses: dict[str, str], lost: set[str]
    ) -> ResolvedJob:
        """Start what was on lost hosts elsewhere, and anew the workers, where they only know the old addresses."""
        before = self._plan.rows
        try:
            if self.hosts[0].name in lost:
                raise ConfigError("it held what no other host has")
            now = self.settle(resolved, lost)
        except ConfigError as error:
            self._leave(supervisor, f"lost {', '.join(sorted(lost))}: {error.message}")
            return resolved
        for name, child in supervisor.children.items():
            moved = before[name] != self._plan.rows[name]
            if moved:
                child.spec = replace(child.spec, probe=replace(child.spec.probe, host=self._address(name)))
                addresses[name] = f"{self._address(name)}:{addresses.get(name, '').rpartition(':')[2]}"
            stale = name.startswith(Role.WORKER) and now.endpoints != resolved.endpoints
            if (moved or stale) and child.status.phase not in TERMINAL:
                log.warning("lost %s: %s starts on %s", sorted(lost), name, self._plan.rows[name].hosts)
                child.restart(child.status.epoch + 1)
        return now


def run_on_slurm(request: StagingRequest, options: Sequence[str], prefix: Sequence[str], console: Console) -> int:
    """Run the job in this allocation, or queue a job that does; answers the exit code."""
    number = os.environ.get("SLURM_JOB_ID")
    job = job_from(request.document or read_document(request.job_file), request.overrides)
    if number is None:
        return _queue(request, job, options, prefix, console)
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0:
        request = replace(request, fresh=False, resume=RunLayout(request.directory(job)).resolved.exists())
    fleet = HostFleet(slurm.allocation(), prefix)
    code = _run(fleet, request, _words("slurm", options, prefix), f"Slurm's job {number}", console)
    # a job that is cancelled gets the same signal, and may be requeued: that would be against its user's will
    if fleet.leaving and slurm.ask("squeue", "-h", "-j", number, "-o", "%T").strip() == "RUNNING":
        console.print(f"{fleet.leaving}: job {number} is queued again", highlight=False)
        slurm.ask("scontrol", "requeue", number)
    return code


def run_on_ray(request: StagingRequest, options: Sequence[str], prefix: Sequence[str], console: Console) -> int:
    """Run the job on nodes of a Ray cluster that this process is in, or reaches; answers the exit code."""
    job = job_from(request.document or read_document(request.job_file), request.overrides)
    refuse(for_clusters_only(job), request.job_file)
    ray, hosts = ray_cluster.reserve(options, lambda text: console.print(text, highlight=False, markup=False))
    fleet = HostFleet(hosts, prefix, ray)
    return _run(fleet, request, _words("ray", options, prefix), f"Ray at {ray.address}", console)


def _words(kind: str, options: Sequence[str], prefix: Sequence[str]) -> list[str]:
    """The words of the command that say on which hosts the job runs."""
    words = ["--on", kind, *(word for option in options for word in (f"--{kind}", option))]
    return words + (["--hosts-command", shlex.join(prefix)] if prefix else [])


def _run(fleet: HostFleet, request: StagingRequest, words: Sequence[str], where: str, console: Console) -> int:
    console.print(f"hosts {', '.join(host.name for host in fleet.hosts)} of {where}", highlight=False, soft_wrap=True)
    return run_job(replace(request, hosts=words), console, fleet)


def _queue(request: StagingRequest, job: RLJob, options: Sequence[str], prefix: Sequence[str], console: Console) -> int:
    """Write the batch script beside the run directory, and queue it."""
    refuse(for_clusters_only(job), request.job_file)
    run_dir = request.directory(job)
    command = [sys.executable, "-m", "areal.cli.main", "run", str(request.job_file.absolute()), *request.overrides]
    command += [*_words("slurm", options, prefix), "--run-dir", str(run_dir)]
    command += [flag for flag, given in (("--resume", request.resume), ("--fresh", request.fresh)) if given]
    chosen = {key: value for key, _, value in (option.lstrip("-").partition("=") for option in options)}
    path, output = run_dir.with_name(f"{run_dir.name}.sbatch"), run_dir.with_name(f"{run_dir.name}.slurm.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(slurm.script(job.metadata.name, command, output, chosen))
    number = slurm.ask("sbatch", "--parsable", str(path)).strip().partition(";")[0]
    console.print(f"queued as Slurm's job {number}; its words: {output}", highlight=False, soft_wrap=True)
    console.print(f"once it runs: areal status {run_dir}", highlight=False, soft_wrap=True)
    return 0
