"""Engine command lines: command and environment of each kind of engine, from the job's settings.

Starts nothing. Flags are SGLang's; the embedded engine has the same names where it has the flag.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from areal.plan.cluster_names import ENV_ENGINE_PLACE, SGLANG_PYTHON
from areal.plan.table import caches, kernel_caches
from areal.spec.serving import START_S, EmbeddedEngineBlock, SglangEngine

SGLANG_CPU_TOKENS = 65_536  # cache positions of stock SGLang on a CPU: its own default would take most of the memory


@dataclass(frozen=True)
class AdapterRoom:
    """What an engine that serves LoRA adapters must have room for."""

    rank: int
    targets: tuple[str, ...]
    slots: int  # adapters that it holds at once


@dataclass(frozen=True)
class EngineStart:
    """What one start of the engine serves."""

    model_path: Path
    tokenizer_path: Path
    weight_version: str
    port: int
    stream_interval: int
    api_key: str
    fp32_head: bool = False  # logits aren't rounded to the precision of the weights
    routes: bool = False  # it is asked for the experts of each token; the embedded engine needs no flag for that
    shared: bool = False  # it gives its memory back while the trainer has the cards
    adapters: AdapterRoom | None = None  # of the versions to come; the embedded engine needs no room for them


@dataclass(frozen=True)
class Launch:
    """A command and what it adds to the environment."""

    argv: list[str]
    env: Mapping[str, str]
    start_s: float = START_S  # to its first answer, at most
    place: Path | None = None  # where another container serves keepers, and the command runs there


def launch(engine: EmbeddedEngineBlock | SglangEngine, start: EngineStart) -> Launch:
    """The command of an engine on this machine."""
    common = [
        "--model-path", str(start.model_path),
        "--tokenizer-path", str(start.tokenizer_path),
        "--host", "127.0.0.1",
        "--port", str(start.port),
        "--weight-version", start.weight_version,
        "--stream-interval", str(start.stream_interval),
        "--max-running-requests", str(engine.running_requests),
        "--dtype", engine.dtype,
        *(["--enable-fp32-lm-head"] if start.fp32_head else []),
    ]  # fmt: skip
    if isinstance(engine, EmbeddedEngineBlock):
        return Launch(
            [sys.executable, "-m", "areal.engine.main", *common, "--cache-bytes", str(engine.cache_memory)],
            {"AREAL_ENGINE_API_KEY": start.api_key, "OMP_NUM_THREADS": "1"},
        )
    stock = [*common, "--api-key", start.api_key, "--enable-metrics", "--log-level", "warning", "--sleep-on-idle"]
    stock += ["--incremental-streaming-output"]  # not all tokens again in each event
    if engine.context_length is not None:
        stock += ["--context-length", str(engine.context_length)]
    if engine.mem_fraction is not None:
        stock += ["--mem-fraction-static", str(engine.mem_fraction)]
    stock += ["--enable-return-routed-experts"] if start.routes else []
    if any(start.model_path.glob("*processor_config.json")):  # or torchvision would scale images, unlike the trainer
        stock += ["--image-processor-backend", "pil"]
    if (room := start.adapters) is not None:
        stock += ["--enable-lora", "--max-lora-rank", str(room.rank), "--lora-target-modules", *room.targets]
        stock += ["--max-loras-per-batch", str(room.slots), "--max-loaded-loras", str(room.slots)]
    if start.shared and engine.gpus:  # on CPUs its preload can't be loaded, and nothing is freed
        stock += ["--enable-memory-saver"]
    env = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}  # /health then answers while paused
    if engine.gpus:
        graphs = ["--cuda-graph-max-bs-decode", str(engine.running_requests)]  # of each batch that it decodes
        # The other sampler is compiled when a request first has top-p, top-k or no temperature: minutes, in mid-run.
        sampler = ["--sampling-backend", "pytorch"]
        own = [*stock, "--tp-size", str(engine.tensor_parallel), *graphs, *sampler, *engine.extra_args]
        if place := os.environ.get(ENV_ENGINE_PLACE):  # an upstream image, which has its own CUDA
            kept = {name: os.environ[name] for name in caches(Path()) | kernel_caches(Path()) if name in os.environ}
            argv = [engine.python or "python3", "-m", "sglang.launch_server", *own]
            return Launch(argv, kept | env, engine.start_s, Path(place))
        python = engine.python or os.environ.get(SGLANG_PYTHON) or sys.executable
        argv = [python, "-m", "sglang.launch_server", *own]
        return Launch(argv, env | cuda_of(Path(python), os.environ), engine.start_s)
    cpu = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule"]
    cpu += ["--max-total-tokens", str(SGLANG_CPU_TOKENS)]
    cpu += ["--lora-backend", "torch_native"] if start.adapters is not None else []
    return Launch(
        [sys.executable, "-m", "areal.engine.sglang_cpu", *stock, *cpu, *engine.extra_args],
        {**env, "OMP_NUM_THREADS": "1"},
    )


def cuda_of(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What SGLang's process needs in its environment to compile its kernels with the CUDA wheels beside `python`.

    `docker/cuda_home` makes these wheels fit for linking. A CUDA_HOME that the environment names, an upstream image's
    for example, stays. The path of the loader is for processes that preload a library which needs CUDA's own; it is set
    for SGLang alone.
    """
    homes = sorted(python.parent.parent.glob("lib/python3.*/site-packages/nvidia/cu13/lib64"))
    if "CUDA_HOME" in environ or not homes:
        return {}
    libraries = [str(homes[-1].with_name("lib")), *filter(None, [environ.get("LD_LIBRARY_PATH")])]
    return {"CUDA_HOME": str(homes[-1].parent), "LD_LIBRARY_PATH": ":".join(libraries)}
