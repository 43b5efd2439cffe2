"""`areal serve`: a model behind OpenAI's and Anthropic's APIs on this machine, by the embedded engine."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from areal.engine.api import ModelServer
from areal.engine.embedded import EngineOptions, TorchEngine
from areal.errors import ArealError, ConfigError, ExitCode
from areal.gateway.http import LOOPBACK
from areal.plan import hub
from areal.weights.exports import reading
from areal.workflow.tokenizer import Tokenizer

_HERE = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.host not in _HERE and not arguments.key:
            raise ConfigError(f"{arguments.host} can be reached by others", fix="give a key: --key, or AREAL_SERVE_KEY")
        model = model_of(arguments.model)
        with reading(model) as held:
            return asyncio.run(_serve(held, arguments))
    except ArealError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.DONE)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="areal serve", allow_abbrev=False, description=__doc__)
    made.add_argument("model", metavar="MODEL|RUN", help="a model directory, a finished run, or hf://owner/name")
    made.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    made.add_argument("--host", default=LOOPBACK, help="default: %(default)s")
    made.add_argument("--key", default=os.environ.get("AREAL_SERVE_KEY", ""), help="API key; or AREAL_SERVE_KEY")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    return made


def model_of(named: str) -> Path:
    """The model's directory. Raises ConfigError."""
    if hub.is_hub(named):
        return hub.fetch(named, print)
    path = Path(named)
    if (path / "resolved.json").is_file():
        path = path / "model"
        if not path.is_dir():
            raise ConfigError(f"the run {named} has no model yet", fix="wait for its end, or name a model directory")
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} is no Hugging Face model: it has no config.json", fix="name a model or a run")
    return path


async def _serve(model: Path, arguments: argparse.Namespace) -> int:
    stopped, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def fail(_error: BaseException) -> None:
        loop.call_soon_threadsafe(failed.set)

    engine = TorchEngine(EngineOptions(model_path=model, dtype=arguments.dtype, weight_version="served"), fail)
    name = arguments.model.rstrip("/").rpartition("/")[2]
    server = ModelServer(engine, Tokenizer.from_dir(model), name=name, key=arguments.key)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    engine.start()
    try:
        server.start(arguments.host, arguments.port)
        print(f"serving {model} at {server.address}/v1 (Ctrl-C ends it)", flush=True)
        waits = [asyncio.ensure_future(event.wait()) for event in (stopped, failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await server.stop()
        engine.stop()
    return int(ExitCode.BUG if failed.is_set() else ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
