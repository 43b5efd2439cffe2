"""Entry of every trainer rank: `torchrun … -m areal_trainer.main --job resolved.json --port P --metrics-port M`.

Owns the exit code: a failure says whose fault it was, so that a failure policy can tell a broken job from a lost
machine. SIGTERM ends the current step, saves and exits 143. GPUs that the job promised are looked for before anything
is loaded: a rank that sees none would train a 7B model on the CPU without a word.
"""

import argparse
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from areal import nvidia
from areal.observe import logs
from areal.processes.exits import write_error

from areal_trainer.blame import blamed


def main(argv: list[str] | None = None) -> int:
    """Parse, run, classify."""
    parser = argparse.ArgumentParser(prog="areal_trainer.main", description=__doc__)
    parser.add_argument("--job", required=True, help="the resolved job")
    parser.add_argument("--port", type=int, default=0, help="of this role's gRPC server")
    parser.add_argument("--metrics-port", type=int, default=0, help="of this role's Prometheus metrics")
    arguments = parser.parse_args(argv)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    rank = os.environ.get("RANK", "0")
    logs.setup("trainer" if rank == "0" else f"trainer-{rank}", Path(arguments.job).stem)
    log = logging.getLogger("areal_trainer")
    try:
        return _run(arguments, stopping)
    except Exception as error:
        told = blamed(error)
        log.error("%s error: %s", told.kind, told, exc_info=None if told is error else error)
        write_error(told)
        return int(told.exit_code)


def _run(arguments: argparse.Namespace, stopping: threading.Event) -> int:
    import torch

    from areal_trainer.desk import TrainerPorts
    from areal_trainer.run import run
    from areal_trainer.settings import settings_of

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "0")) or torch.get_num_threads())
    settings = settings_of(Path(arguments.job))
    require_gpus(settings.spec.trainer.gpus)
    return int(run(settings, TrainerPorts(arguments.port, arguments.metrics_port), stopping))


def leave(code: int) -> None:
    """End this process. One that fails waits for no thread: it may be asking a server for minutes."""
    if not code:
        sys.exit()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def require_gpus(gpus: int, machine: nvidia.Machine | None = None) -> None:
    """Raise ConfigError unless this machine shows a GPU to each rank on it.

    Args:
        gpus: `trainer.gpus` of the job, a node's; 0 trains on CPUs and asks for nothing.
    """
    if gpus == 0:
        return
    import torch

    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", gpus))
    where = nvidia.Machine() if machine is None else machine
    nvidia.require(ranks_here, "the trainer", where)
    seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if seen < ranks_here:
        raise nvidia.missing(
            ranks_here, seen, "the trainer", where.driver(), torch.version.cuda or "none (a CPU build)"
        )


if __name__ == "__main__":
    leave(main())
