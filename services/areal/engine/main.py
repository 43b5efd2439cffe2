"""`python -m areal.engine.main`: the embedded engine as a process. Flags have SGLang's names where SGLang has them."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType

import torch
import uvicorn

from areal.engine.control import create_app
from areal.engine.embedded import CACHE_BYTES, EngineOptions, TorchEngine
from areal.errors import ArealError, ExitCode
from areal.processes.exits import write_error

GRACE_S = 30.0  # how long a stopped engine lets running calls end


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(arguments.torch_threads)
    try:
        engine = TorchEngine(options(arguments), _fail)
    except ArealError as error:
        print(f"error: {error}", file=sys.stderr)
        write_error(error)
        return int(error.exit_code)
    return asyncio.run(_serve(engine, arguments))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="areal.engine.main", allow_abbrev=False, description=__doc__)
    made.add_argument("--model-path", type=Path, required=True, help="Hugging Face directory to start from")
    made.add_argument("--tokenizer-path", type=Path, help="directory of tokenizer.json; default: the model's")
    made.add_argument(
        "--skip-tokenizer-init", dest="skip_tokenizer", action="store_true",
        help="answer no text and take no stop strings",
    )  # fmt: skip
    made.add_argument("--host", default="127.0.0.1")
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--weight-version", default="default", help="name of the weights at --model-path")
    made.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    made.add_argument(
        "--enable-fp32-lm-head", dest="fp32_head", action="store_true", help="logits aren't rounded to --dtype"
    )
    made.add_argument("--max-running-requests", type=int, default=128)
    made.add_argument("--cache-bytes", type=int, default=CACHE_BYTES, help="memory for keys and values")
    made.add_argument("--max-prefill-tokens", type=int, default=8192, help="prompt tokens computed between two steps")
    made.add_argument("--context-length", type=int, help="default: the model's")
    made.add_argument("--stream-interval", type=int, default=1, help="tokens in a streamed chunk")
    made.add_argument("--api-key", default=os.environ.get("AREAL_ENGINE_API_KEY"), help="or AREAL_ENGINE_API_KEY")
    made.add_argument(
        "--admin-api-key", default=os.environ.get("AREAL_ENGINE_ADMIN_API_KEY"), help="or AREAL_ENGINE_ADMIN_API_KEY"
    )
    made.add_argument("--torch-threads", type=int, default=1, help="more than one slows small models down")
    made.add_argument("--log-level", default="warning")
    return made


def options(arguments: argparse.Namespace) -> EngineOptions:
    """The parsed command line as engine options, which its destinations are named after."""
    return EngineOptions(**{option.name: getattr(arguments, option.name) for option in fields(EngineOptions)})


def _fail(_error: BaseException) -> None:
    """A scheduler that failed has no defined state: end at once, so that callers see it and a new engine starts."""
    logging.shutdown()
    os._exit(int(ExitCode.BUG))


class _DrainingServer(uvicorn.Server):
    """Answers probes with 503 as soon as it was asked to stop, while running calls end."""

    def __init__(self, config: uvicorn.Config, engine: TorchEngine) -> None:
        super().__init__(config)
        self._engine = engine

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._engine.draining = True
        super().handle_exit(sig, frame)


async def _serve(engine: TorchEngine, arguments: argparse.Namespace) -> int:
    engine.start()
    app = create_app(engine, api_key=arguments.api_key, admin_key=arguments.admin_api_key)
    config = uvicorn.Config(
        app,
        host=arguments.host,
        port=arguments.port,
        log_level=arguments.log_level,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(GRACE_S),
    )
    server = _DrainingServer(config, engine)
    try:
        await server.serve()
    finally:
        engine.stop()
    return int(ExitCode.DONE if server.started else ExitCode.INFRA)


if __name__ == "__main__":
    sys.exit(main())
