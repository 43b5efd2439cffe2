"""torchrun with this project's exit codes.

`python -m areal_trainer.torchrun` takes torch.distributed.run's arguments and behaves like it, but exits with the code
of the rank that failed first, and with 143 after a SIGTERM: torchrun itself exits 1 for everything. A gang of one
process needs no rendezvous and no agent: this process becomes the rank, which halves the time of a restart.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from areal.errors import ExitCode


def alone(arguments: Sequence[str]) -> list[str] | None:
    """The command line of the only rank after `python`, or None when there are several."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--nnodes", default="1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    if "-m" not in arguments:
        return None
    place = list(arguments).index("-m")
    gang, _ = parser.parse_known_args(list(arguments[:place]))
    return list(arguments[place:]) if (gang.nnodes, gang.nproc_per_node) == ("1", "1") else None


def main(arguments: Sequence[str]) -> int:
    """Run the gang; returns the exit code."""
    command = alone(arguments)
    if command is not None:
        rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.execve(sys.executable, [sys.executable, *command], {**os.environ, **rank})
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
