"""The role `generation`: an agent and the engine that it launches."""

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path

from areal import nvidia
from areal.errors import ExitCode
from areal.generation.agent import AgentSettings, GenerationAgent
from areal.generation.engine_command import AdapterRoom
from areal.plan.cluster_names import ENV_ENGINE_PLACE
from areal.plan.context import RoleContext
from areal.processes.family import lend_keeper
from areal.spec.job import JobSpec
from areal.spec.rules_lora import lora_slots
from areal.spec.serving import SglangEngine
from areal.weights.mirror import MODEL, TOKENIZER, VolumeMirror
from areal.weights.stage import own_directory

log = logging.getLogger(__name__)

_MODEL_S = 120.0  # until the role that has the volume answers


async def settings_of(ctx: RoleContext) -> AgentSettings:
    """An agent's settings from what the role was told; where no volume is mounted, the start model is read first."""
    resolved, mirror = ctx.resolved, None
    model, tokenizer = resolved.model_path, resolved.tokenizer_path
    if (address := resolved.endpoints.weights) is not None:
        own = own_directory(str(resolved.run_dir), f"{ctx.name}-volume")
        mirror = VolumeMirror(own, address, ctx.token)
        same, patience_s = tokenizer == model, max(resolved.patience_s, _MODEL_S)
        ctx.progress.doing = "reading the start model"
        model = await asyncio.to_thread(mirror.directory, MODEL, patience_s=patience_s)
        tokenizer = model if same else await asyncio.to_thread(mirror.directory, TOKENIZER, patience_s=patience_s)
    generation, recording = ctx.resolved.spec.generation, ctx.resolved.spec.recording
    return AgentSettings(
        server_id=ctx.name,
        job=ctx.resolved.name,
        run=str(ctx.resolved.run_dir),
        token=ctx.token,
        access=ctx.access,
        incarnation=ctx.incarnation,
        controller=ctx.resolved.endpoints.controller,
        model_path=model,
        tokenizer_path=tokenizer,
        engine=generation.engine,
        engine_port=ctx.resolved.ports_of(ctx.role, ctx.index)["engine"],
        stream_interval=generation.stream_interval,
        routes=ctx.resolved.spec.replays_routes,
        fp32_head=ctx.resolved.spec.trainer.fp32_head,
        adapters=_adapters(ctx.resolved.spec),
        port=ctx.port,
        host=ctx.bind,
        advertise=ctx.advertise,
        cards=ctx.resolved.cards if ctx.resolved.spec.shared_cards else None,
        weight_group=ctx.resolved.endpoints.trainer if ctx.resolved.spec.weights_by_group else None,
        journal=ctx.resolved.layout.tokens if recording.token_audit else None,
        traces=ctx.traces,
        mirror=mirror,
        volume=ctx.resolved.layout.weights if ctx.resolved.spec.weights_by_memory else None,
        journal_bytes=recording.keep // (2 * generation.replicas),  # the trainer has the other half
    )


def _adapters(spec: JobSpec) -> AdapterRoom | None:
    """Room for every adapter that a running answer may still use, and for the one that comes."""
    lora = spec.trainer.lora
    if lora is None:
        return None
    return AdapterRoom(lora.rank, tuple(lora.targets), lora_slots(spec))


def seed_kernels() -> int:
    """Copy the compiled kernels of the image into SGLang's cache where that lacks them; returns how many.

    The cache may be a volume that several servers fill at once: a module appears whole, by a rename.
    """
    source, cache = os.environ.get("AREAL_KERNELS"), os.environ.get("SGLANG_JIT_CACHE_DIR")
    if source is None or cache is None:
        return 0
    copied = 0
    for module in sorted(Path(source).glob("*/*/*/*")):  # target, name, how it was built, of which sources
        place = Path(cache, module.relative_to(source))
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".seed-", dir=place.parent))
        try:
            shutil.copytree(module, staging, dirs_exist_ok=True)
            staging.rename(place)
            copied += 1
        except OSError as problem:  # another server was first, or there is no room: SGLang compiles what it lacks
            log.info("the kernels of %s were not copied: %s", module.name, problem)
            shutil.rmtree(staging, ignore_errors=True)
    return copied


async def run(ctx: RoleContext) -> int:
    """Serve until asked to stop; returns the exit code. Raises InfraError when the engine can't be kept alive,
    and ConfigError when GPUs were promised and aren't there.
    """
    settings = await settings_of(ctx)
    if place := os.environ.get(ENV_ENGINE_PLACE):  # GPUs are that container's
        lend_keeper(Path(place))
    elif isinstance(settings.engine, SglangEngine):
        nvidia.require(settings.engine.gpus, f"the generation server {settings.server_id}")
        seed_kernels()
    agent = GenerationAgent(settings, ctx.progress)
    port = await agent.start()
    agent.metrics.serve(ctx.metrics_port, ctx.bind)
    log.info("serving on port %d, engine %s on port %d", port, agent.settings.engine.type, agent.settings.engine_port)
    await agent.run(ctx.stop)
    return ExitCode.DONE
