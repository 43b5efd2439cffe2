"""torchrun with this project's exit codes, and with what a gang of several pods needs.

`python -m areal_trainer.torchrun` takes torch.distributed.run's arguments and behaves like it, but exits with the code
of the rank that failed first, and with 143 after a SIGTERM: torchrun itself exits 1 for everything. A node with one
process needs no agent: this process becomes the rank, which halves the time of a restart.

Several nodes meet at a fixed address, once an epoch: `AREAL_EPOCH` decides the rendezvous' id and port, so that a
member that is late in an old epoch is never taken for one of the new. The address is a name that may not exist yet.
"""

import argparse
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal.errors import ExitCode, InfraError
from areal.observe import logs
from areal.processes.family import STANDBY

_log = logging.getLogger("areal_trainer.torchrun")

EPOCH_PORTS = 8
"""Neighbouring epochs meet at different ports; a store of eight epochs ago is gone."""

NAME_PATIENCE_S = 600.0  # records of a new pod lag by seconds, but its pod may have to be scheduled first
_NAME_PAUSE_S = 0.5
_SAVE_S = 600  # between SIGTERM and SIGKILL of ranks: the last checkpoint of a large model


@dataclass(frozen=True)
class TorchrunGang:
    """What the command line says about the ranks. `command` is the rank's, after `python`."""

    nodes: int
    processes: int
    command: list[str]
    rest: list[str]  # torchrun's other arguments
    address: str = ""
    port: int = 0
    run_id: str = ""
    node: int = 0  # which of the nodes this is


def parse(arguments: Sequence[str]) -> TorchrunGang | None:
    """The gang; None when there is no module to run, or the number of nodes is torchrun's to find out."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    parser.add_argument("--master-addr", "--master_addr", default="127.0.0.1")
    parser.add_argument("--master-port", "--master_port", type=int, default=29500)
    parser.add_argument("--rdzv-id", "--rdzv_id", default="none")
    parser.add_argument("--node-rank", "--node_rank", type=int, default=0)
    if "-m" not in arguments:
        return None
    place = list(arguments).index("-m")
    known, rest = parser.parse_known_args(list(arguments[:place]))
    if not (known.nnodes.isdigit() and known.nproc_per_node.isdigit()):
        return None
    return TorchrunGang(
        nodes=int(known.nnodes),
        processes=int(known.nproc_per_node),
        command=list(arguments[place:]),
        rest=rest,
        address=known.master_addr,
        port=known.master_port,
        run_id=known.rdzv_id,
        node=known.node_rank,
    )


def of_epoch(gang: TorchrunGang, epoch: int) -> list[str]:
    """torchrun's arguments for several nodes in one epoch."""
    return [
        "--nnodes", str(gang.nodes),
        "--nproc-per-node", str(gang.processes),
        "--master-addr", gang.address,
        "--master-port", str(gang.port + epoch % EPOCH_PORTS),
        "--rdzv-id", f"{gang.run_id}-{epoch}",
        "--node-rank", str(gang.node),
        *gang.rest,
        *gang.command,
    ]  # fmt: skip


def rank_environment(gang: TorchrunGang, epoch: int) -> dict[str, str]:
    """Environment for torch.distributed in the only rank of a node. A gang of one meets nobody."""
    rank = {"RANK": str(gang.node), "LOCAL_RANK": "0", "WORLD_SIZE": str(gang.nodes), "LOCAL_WORLD_SIZE": "1"}
    if gang.nodes == 1:
        return rank
    return {**rank, "MASTER_ADDR": gang.address, "MASTER_PORT": str(gang.port + epoch % EPOCH_PORTS)}


def await_name(
    host: str,
    *,
    patience_s: float = NAME_PATIENCE_S,
    resolve: Callable[[str, None], object] = socket.getaddrinfo,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once `host` has an address. Raises InfraError when it has none within `patience_s`."""
    deadline, said = clock() + patience_s, False
    while True:
        try:
            resolve(host, None)
            return
        except OSError as error:
            if clock() > deadline:
                raise InfraError(
                    f"{host} has no address after {patience_s:.0f} s ({error})",
                    fix="look at the first trainer's pod and its headless Service",
                ) from error
            if not said:
                _log.info("waiting for %s to have an address (%s)", host, error)
                said = True
        sleep(_NAME_PAUSE_S)


def stand_by(descriptor: int, job: Path, *, alone: bool) -> bool:
    """Warm standby of a rank: do all that needs no one else, then wait for the start, whose environment and output
    become this process'. False when the launcher ended instead. `alone` says that it would be the only rank.

    Nothing here may touch a GPU, the ledger or a fence: the living trainer has them until it is dead.
    """
    _name("warming")
    import areal_trainer.run  # noqa: F401  with torch, what takes seconds
    from areal_trainer.engine.engine import PolicyEngine
    from areal_trainer.engine.group import RankGroup
    from areal_trainer.engine.model import empty_model
    from areal_trainer.publish.canary import prepare
    from areal_trainer.settings import model_options, settings_of

    settings = settings_of(job)
    if settings.paths.tensorboard is not None:
        import torch.utils.tensorboard  # noqa: F401
    if alone and settings.spec.trainer.gpus == 0:  # a first pass costs more than a second, in any model
        ranks = RankGroup()
        prepare(PolicyEngine(settings.paths.start_model, model_options(settings.spec), ranks), settings.paths.tokenizer)
        ranks.close()
    else:
        empty_model(settings.paths.start_model)  # with its family's code
    _name("standby")
    with socket.socket(fileno=descriptor) as launcher:
        told = b""
        outputs: list[int] = []
        while not told.endswith(b"\n"):
            more, descriptors, _, _ = socket.recv_fds(launcher, 1 << 16, 1)
            if not more:
                return False
            told, outputs = told + more, outputs + descriptors
    for output in outputs:
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    os.environ.update(json.loads(told))
    _name("trainer")
    return True


def _name(what: str) -> None:
    """Tell process lists what this process does."""
    Path("/proc/self/comm").write_text(f"areal-{what}")


def main(arguments: Sequence[str]) -> int:
    """Run the gang; returns the exit code."""
    gang = parse(arguments)
    waits_on = os.environ.pop(STANDBY, "")  # of a node with one process, as the launcher knows
    if waits_on and not (gang and stand_by(int(waits_on), Path(gang.command[3]), alone=gang.nodes == 1)):
        return int(ExitCode.DRAINED)
    epoch = int(os.environ.get("AREAL_EPOCH", "0"))
    if gang is not None and gang.nodes > 1:
        logs.setup("trainer", "?")
        try:
            await_name(gang.address)
        except InfraError as error:
            _log.error("%s", error)
            return int(error.exit_code)
        arguments = of_epoch(gang, epoch)
    if waits_on and gang is not None:
        from areal_trainer import main as rank

        os.environ.update(rank_environment(gang, epoch))
        rank.leave(rank.main(gang.command[2:]))
    if gang is not None and gang.processes == 1:
        os.execve(sys.executable, [sys.executable, *gang.command], {**os.environ, **rank_environment(gang, epoch)})
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(_SAVE_S))
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(list(arguments)))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        code = int(failure.exitcode)
        return code if code > 0 else int(ExitCode.INFRA)  # negative: a signal killed it
    except SignalException:
        return int(ExitCode.DRAINED)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
