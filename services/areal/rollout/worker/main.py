"""Entry of the role `worker`: builds the parts from the resolved job and runs them."""

import difflib
import hashlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

from areal.clients.generation import GenerationClient
from areal.clients.reward import RewardClient
from areal.errors import ConfigError, DataError, ExitCode
from areal.gateway.faults import secret_of
from areal.gateway.session import SessionLimits
from areal.ledger.async_client import AsyncLedger
from areal.net.server import GrpcServer
from areal.observe.metrics import RoleMetrics
from areal.observe.waits import WaitRegistry
from areal.plan.access import session_key_of
from areal.plan.context import RoleContext
from areal.plan.redis_conf import login_of
from areal.plan.resolved import ResolvedJob
from areal.record.writer import RecordWriter
from areal.rollout.worker.episode_engine import EpisodeBoxes
from areal.rollout.worker.episode_run import EpisodeSettings
from areal.rollout.worker.recording import EpisodeRecording, RecordLimits
from areal.rollout.worker.sessions import Gateways, SessionRules, Sessions
from areal.rollout.worker.worker import Identity, Worker, WorkerTools
from areal.spec.resolved_algorithm import needs_scores
from areal.spec.rollout import AgentBlock
from areal.tls import TrustFile, tls_dir, web_address
from areal.v1 import common_pb2 as common
from areal.workflow.agent import AgentWorkflow, agent_of
from areal.workflow.base import RolloutWorkflow, sampling_of
from areal.workflow.command import CommandAgent
from areal.workflow.environment import HostedAgent, HostedWorkflow
from areal.workflow.interpreter.client import ChildInterpreter, Target
from areal.workflow.recipe import Recipe, load_recipe
from areal.workflow.rlvr import MultiTurnWorkflow, RLVRWorkflow
from areal.workflow.tokenizer import Tokenizer

# Workflows by name: the built-in ones, and those of the job's recipe.

BUILT_IN: dict[str, type[RolloutWorkflow]] = {
    RLVRWorkflow.name: RLVRWorkflow,
    MultiTurnWorkflow.name: MultiTurnWorkflow,
    AgentWorkflow.name: AgentWorkflow,
    HostedWorkflow.name: HostedWorkflow,
}


def find_workflow(
    name: str, recipe_workflows: Mapping[str, type[RolloutWorkflow]] | None = None
) -> type[RolloutWorkflow]:
    """The workflow class called `name`; a recipe's own comes before a built-in one. Raises ConfigError."""
    known = {**BUILT_IN, **(recipe_workflows or {})}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    raise ConfigError(
        f"rollout.workflow {name!r} is unknown; known: {', '.join(sorted(known))}",
        fix=f"did you mean {near[0]!r}?" if near else "derive a class from RolloutWorkflow in the recipe and name it",
    )


log = logging.getLogger(__name__)

_CONNECTIONS = 8  # to pods behind one address: each connection reaches one of them
BLOCKED_LOOP_S = 30.0  # no workflow may hold the event loop longer: all its neighbours wait meanwhile


def generation_client(
    job: ResolvedJob,
    token: str,
    owner: str,
    tokenizer: Tokenizer,
    waits: WaitRegistry,
    on_tokens: Callable[[int], object] = lambda _tokens: None,
) -> GenerationClient:
    """Client of the job's servers. In a synchronous loop requests move to servers with less to do."""
    return GenerationClient(
        token,
        owner=owner,
        vocab_size=tokenizer.vocab_size,
        eos_ids=tokenizer.eos_ids,
        waits=waits,
        decode=tokenizer.decode,
        on_tokens=on_tokens,
        routes=job.route_bytes != 0,
        evens=0 in (job.spec.rollout.ahead, job.spec.algorithm.max_staleness),
    )


async def run(ctx: RoleContext) -> int:
    """Run episodes until the controller ends the run, or until asked to stop."""
    job, spec = ctx.resolved, ctx.resolved.spec
    tokenizer = Tokenizer.from_dir(job.tokenizer_path, model_dir=job.model_path, job=spec.model)
    recipe = load_recipe(job.recipe_path) if job.recipe_path is not None else None
    workflow = find_workflow(spec.rollout.workflow, recipe.workflows if recipe else None)
    trust = TrustFile() if job.endpoints.gateways and tls_dir() is not None else None
    make_workflow = _factory(workflow, job, recipe)
    metrics = RoleMetrics("worker", job.name)
    metrics.serve(ctx.metrics_port, ctx.bind)
    waits, progress = WaitRegistry(ctx.name), ctx.progress
    sessions = _sessions(ctx, tokenizer, waits, metrics, trust)
    server = GrpcServer(ctx.name, ctx.access, waits=waits, progress=progress)
    await server.start(ctx.port, ctx.bind)
    client = generation_client(job, ctx.token, ctx.incarnation, tokenizer, waits, progress.advance)
    reward = _reward(job, ctx.token, waits)
    login = login_of(job, "worker")
    ledger = AsyncLedger(login.address, job.uid, username=login.username, password=login.password)
    tools = WorkerTools(
        client=client,
        reward=reward,
        ledger=ledger,
        tokenizer=tokenizer,
        recording=_recording(ctx, tokenizer, metrics),
        waits=waits,
        progress=progress,
        metrics=metrics,
        sessions=sessions,
        boxes=EpisodeBoxes(ends.boxes, ctx.token, waits) if (ends := job.endpoints).boxes is not None else None,
        traces=ctx.traces,
    )
    identity = Identity(
        ctx.name, ctx.incarnation, spec.rollout.max_concurrent_rollouts, _digests(job, tokenizer, recipe)
    )
    worker = Worker(
        identity,
        tools,
        _settings(job),
        make_workflow,
        job.endpoints.controller,
        ctx.token,
        deadline_s=spec.rollout.group_deadline_seconds,
        stall_s=min(spec.rollout.group_deadline_seconds, BLOCKED_LOOP_S),
    )
    try:
        sessions.start()
        await server.set_ready(True)
        over = await worker.run(ctx.stop)
        log.info("the run is over" if over else "stopped; what was in work is given back")
        return ExitCode.DONE if over else ExitCode.DRAINED
    finally:
        await sessions.stop()
        await client.close()
        if reward is not None:
            await reward.close()
        await ledger.close_connection()
        await server.stop(0.5)


def _settings(job: ResolvedJob) -> EpisodeSettings:
    rollout = job.spec.rollout
    sampling = sampling_of(rollout.sampling)
    return EpisodeSettings(
        seed=job.spec.seed,
        sampling=sampling,
        evaluation_sampling=replace(sampling, temperature=job.spec.evaluation.temperature),
        max_sample_tokens=rollout.max_sample_tokens,
        chat_template=rollout.chat_template,
        verifier=job.verifier or "",
        unscored=not needs_scores(job.spec),
    )


def _recording(ctx: RoleContext, tokenizer: Tokenizer, metrics: RoleMetrics) -> EpisodeRecording:
    spec = ctx.resolved.spec
    wanted, workers = spec.recording, spec.rollout.workers
    limits = RecordLimits(wanted.share, wanted.budget_per_step // (2 * workers), spec.algorithm.batch_size)
    keep = wanted.keep // (2 * workers)  # the trainer has the other half
    directory = ctx.resolved.layout.trajectories
    writer = RecordWriter(directory, ctx.name, metrics, keep_bytes=keep) if wanted.share > 0 else None
    return EpisodeRecording(writer, tokenizer, limits, ctx.name, spec.reward.answer_field)


def _reward(job: ResolvedJob, token: str, waits: WaitRegistry) -> RewardClient | None:
    address = job.endpoints.reward_custom if job.verifier == "custom" else job.endpoints.reward
    if job.verifier is None or address is None:
        return None
    reward = job.spec.reward
    connections = min(reward.replicas, _CONNECTIONS) if job.in_pods else 1  # here one process serves, whatever is asked
    return RewardClient([address] * connections, token, waits=waits, deadline_s=reward.longest_score_s)


def _digests(job: ResolvedJob, tokenizer: Tokenizer, recipe: Recipe | None) -> common.Digests:
    sampling = job.spec.rollout.sampling.model_dump_json()
    return common.Digests(
        recipe=recipe.digest if recipe else "",
        tokenizer=tokenizer.digest,
        sampling=hashlib.sha256(sampling.encode()).hexdigest(),
    )


def _sessions(
    ctx: RoleContext, tokenizer: Tokenizer, waits: WaitRegistry, metrics: RoleMetrics, trust: TrustFile | None
) -> Sessions:
    """The sessions of this worker's agents."""
    rollout, ends = ctx.resolved.spec.rollout, ctx.resolved.endpoints
    gateways = None
    if ends.gateways:
        secret = secret_of(session_key_of(ctx.resolved))
        urls = [web_address(url) for url in ends.gateway_urls]
        gateways = Gateways(ends.gateways, urls, ctx.token, ctx.incarnation, waits, secret, trust)
    calls = (rollout.agent or AgentBlock()).max_calls
    limits = SessionLimits(rollout.sampling.max_new_tokens, rollout.max_sample_tokens, calls)
    asked = rollout.gateway
    rules = SessionRules(rollout.chat_template, asked.unsupported == "ignore", asked.volatile_system == "keepFirst")
    return Sessions(tokenizer, limits, rules=rules, gateways=gateways, metrics=metrics)


def _factory(workflow: type[RolloutWorkflow], job: ResolvedJob, recipe: Recipe | None) -> Callable[[], RolloutWorkflow]:
    """Makes the workflow, once for each event loop of user code."""
    rollout, own_recipe = job.spec.rollout, str(job.recipe_path) if job.recipe_path is not None else None
    if workflow is HostedWorkflow and (plays := rollout.environment) is not None:
        python = plays.python or sys.executable
        target = Target("environment", plays.name, python, own_recipe, plays.config)
        child = ChildInterpreter(target).start()
        return lambda: HostedWorkflow(child, rollout.max_turns)
    if workflow is not AgentWorkflow:
        return lambda: instance_of(workflow, rollout.max_turns)
    agent = rollout.agent or AgentBlock()
    if agent.command is not None:
        command = CommandAgent(agent.command)
        return lambda: AgentWorkflow(command.run)
    if agent.python is not None:
        hosted = HostedAgent(ChildInterpreter(Target("agent", agent.run or "", agent.python, own_recipe)).start())
        return lambda: AgentWorkflow(hosted.run)
    return lambda: AgentWorkflow(agent_of(recipe.module if recipe else None, agent.run or ""))


def instance_of(workflow: type[RolloutWorkflow], max_turns: int) -> RolloutWorkflow:
    """An instance of the user's class; its constructor may do without `max_turns`."""
    try:
        if "max_turns" in inspect.signature(workflow).parameters:
            return workflow(max_turns=max_turns)
        return workflow()
    except Exception as error:
        raise DataError(
            f"workflow {workflow.__name__} can't be made: {type(error).__name__}: {error}",
            fix="give its constructor no arguments, or only max_turns",
        ) from error
