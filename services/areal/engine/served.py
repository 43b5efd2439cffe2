"""A model behind `areal serve` on a free port of this machine, for as long as a command needs it."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from areal.errors import ConfigError
from areal.spec.locality import FETCHED, locality_of

_START_S = 900.0  # a large model is read from a slow disk, or from the hub
_END_S = 10.0


def is_address(model: str) -> bool:
    """Whether a model is named by the address of its server."""
    return "://" in model and locality_of(model) not in FETCHED


@contextlib.contextmanager
def served(model: str, options: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server of its own; it ends with the block. Raises ConfigError where it doesn't start."""
    command = [sys.executable, "-m", "areal.engine.serve", model, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        late = threading.Timer(_START_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("serving "):
                    late.cancel()
                    yield line.rpartition(" at ")[2].partition("/v1")[0]
                    return
                print(line, end="", file=sys.stderr)
            raise ConfigError(f"{model} can't be served", fix="see the message above")
        finally:
            late.cancel()
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
