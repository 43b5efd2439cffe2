"""torchrun with this project's exit codes.

`python -m areal_trainer.torchrun` takes torch.distributed.run's arguments and behaves like it, but exits with the code
of the rank that failed first, and with 143 after a SIGTERM: torchrun itself exits 1 for everything.
"""

from __future__ import annotations

import sys

from areal.errors import ExitCode
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run


def main(argv: list[str] | None = None) -> int:
    """Run the gang; returns the exit code."""
    try:
        run(parse_args(argv))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        code = int(failure.exitcode)
        return code if code > 0 else int(ExitCode.INFRA)  # negative: a signal killed it
    except SignalException:
        return int(ExitCode.DRAINED)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
