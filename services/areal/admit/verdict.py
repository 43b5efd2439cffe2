"""Job admission on this machine: the checks behind `areal check` and the refusals of `areal run`.

Owns the list of what is asked: the job's rules, its files, what engine and trainer know of the model, free space.
Writes and starts nothing.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from areal import nvidia
from areal.admit.facts import Sources, config_of, sources_of
from areal.admit.look import Looked, look
from areal.admit.memory import shape_of
from areal.admit.memory.budget import VERSIONS_KEPT, checkpoint_bytes, disk_bytes
from areal.admit.memory.sentences import adapter_parameters, caches_of, memory_of
from areal.admit.resolve import reward_model_of, teacher_of
from areal.admit.teacher import refuse_teacher
from areal.admit.weight_files import WeightFiles
from areal.engine.model_config import ModelConfig
from areal.errors import ArealError, DataError
from areal.observe.pod_limits import pod_memory_bytes
from areal.plan import hub
from areal.plan.gpus import unused
from areal.spec import Finding, RLJob, Severity, check, refuse
from areal.spec.locality import hub_models
from areal.spec.model_families import refuse_unscorable, refuse_untrainable
from areal.spec.numbers import exports_kept
from areal.spec.quantity import show_bytes
from areal.spec.resolved_algorithm import has_critic
from areal.workflow.tokenizer import Tokenizer


@dataclass(frozen=True)
class Admission:
    """What speaks against a job. `faults` are the errors among the findings that files are the cause of."""

    findings: tuple[Finding, ...]
    faults: tuple[ArealError, ...]
    unseen: tuple[str, ...]
    memory: tuple[tuple[str, str], ...] = ()  # what GPUs and disk hold: subject and sentence
    scores_itself: bool = False  # the workflow or its agent: no service is needed for it

    def refuse(self, job_file: Path | str) -> None:
        """Raise what `areal check` calls an error: a file's fault as it is, else the job's."""
        if self.faults:
            raise self.faults[0]
        refuse(self.findings, job_file)


def admit(job: RLJob, base_dir: Path, run_dir: Path, model_config: Path | None = None) -> Admission:
    """Look at everything that a run would meet in its first minute, apart from programs and expected answers.

    `model_config` is a config.json to plan memory by, for a model that isn't on this machine.
    """
    sources = sources_of(job, base_dir)
    looked = look(job, sources, base_dir)
    if sources.model is not None and not any(field == "spec.model.path" for field, _ in looked.faults):
        _model(job, sources.model, looked)
    away = _away(job, looked)
    if "spec.reward.model.path" not in away:
        with looked.at("spec.reward.model.path"):
            reward_model_of(job, base_dir)
    teacher = None if job.spec.teacher_field in away else _teacher(job, sources, base_dir, looked)
    _agent_program(job, looked)
    _own_python(job, looked)
    findings = [_fault(job, field, error) for field, error in looked.faults]
    findings += check(job, looked.facts, base_dir=base_dir)
    findings += [
        Finding("slow-import", Severity.WARNING, field, message, fix, job.where(field))
        for field, message, fix in looked.warnings
    ]
    if looked.weights is not None and job.spec.runtime_ref is None and job.spec.is_whole:
        findings += _space(job, looked.weights, run_dir, _trained(job, sources.model))
    if job.spec.runtime_ref is None:
        findings += caches_of(job, pod_memory_bytes())
        findings += unused(job, nvidia.Machine().devices())
    memory: list[tuple[str, str]] = []
    place = model_config or sources.model
    if place is not None and not looked.faults and job.spec.is_whole:
        impossible, memory = memory_of(job, config_of(place), config_of(teacher) if teacher is not None else None)
        findings += impossible
    elif job.spec.trainer.gpus:
        looked.unseen.append("memory: the model isn't on this machine; name its config.json with --model-config")
    findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return Admission(
        tuple(findings),
        tuple(error for _, error in looked.faults),
        tuple(looked.unseen),
        tuple(memory),
        job.spec.reward.verifier is None and not (job.spec.recipe and looked.facts.recipe_defines_reward is not False),
    )


def _away(job: RLJob, looked: Looked) -> dict[str, str]:
    """The models beside the job's own that are on the hub and not yet on this machine, by field."""
    beside = {field: uri for field, uri in hub_models(job.spec).items() if field != "spec.model.uri"}
    away = {field: uri for field, uri in beside.items() if hub.cached(uri) is None}
    for field, uri in away.items():
        looked.unseen.append(f"{field.removeprefix('spec.')}: {uri} isn't on this machine; `areal run` downloads it")
    return away


def _teacher(job: RLJob, sources: Sources, base_dir: Path, looked: Looked) -> Path | None:
    """The model that the job learns from, when it can teach this student."""
    with looked.at(job.spec.teacher_field):
        if (found := teacher_of(job, base_dir)) is not None:
            if sources.model is not None and sources.tokenizer is not None and not looked.faults:
                student = Tokenizer.from_dir(sources.tokenizer, model_dir=sources.model)
                refuse_teacher(job.spec, student, sources.model, found)
            return found
    return None


def _agent_program(job: RLJob, looked: Looked) -> None:
    """Whether the agent's command can be started here, where that is for this machine to say."""
    agent = job.spec.rollout.agent
    if agent is None or not agent.command:
        return
    if job.spec.runtime_ref is None:
        looked.facts = replace(looked.facts, agent_program=shutil.which(agent.command[0]) is not None)
    else:
        looked.unseen.append(f"rollout.agent.command: whether workers' image has {agent.command[0]}")


def _own_python(job: RLJob, looked: Looked) -> None:
    """Whether the Python of an agent or an environment is here, where that is for this machine to say."""
    python = job.spec.rollout.own_python
    if python is None:
        return
    if job.spec.runtime_ref is None:
        looked.facts = replace(looked.facts, own_python=shutil.which(python) is not None)
    else:
        looked.unseen.append(f"rollout: whether workers' image has {python}")


def _fault(job: RLJob, field: str, error: ArealError) -> Finding:
    where = job.where(field)
    rule = {"spec.recipe.file": "recipe-import"}.get(field, "dataset" if ".dataset." in field else "model")
    return Finding(rule, Severity.ERROR, field, error.message.removeprefix(f"{where}: "), error.fix, where)


def _model(job: RLJob, model: Path, looked: Looked) -> None:
    """What the engine and the trainer would say of the model."""
    with looked.at("spec.model.path"):
        if job.spec.is_rl and job.spec.generation.engine.type == "embedded":
            try:
                ModelConfig.from_dir(model)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise DataError(
                    f"{model / 'config.json'} lacks what the engine needs, or has it wrong: {error}",
                    fix="save the model again",
                ) from None
        refuse_untrainable(config_of(model), str(model))
        if job.spec.reward_model is not None:
            refuse_unscorable(config_of(model), str(model))


def _trained(job: RLJob, model: Path | None) -> int | None:
    """Parameters of the adapter that is trained, of a model with closed forms; None where all weights count."""
    if job.spec.trainer.lora is None or model is None or (shape := shape_of(config_of(model))) is None:
        return None
    return adapter_parameters(job, shape)


def _space(job: RLJob, weights: WeightFiles, run_dir: Path, trained: int | None) -> list[Finding]:
    place = next((each for each in [run_dir, *run_dir.parents] if each.exists()), None)
    needed = disk_bytes(
        weights.parameters,
        checkpoints=job.spec.checkpoint.keep,
        dtype=job.spec.generation.engine.dtype,
        models=1 + has_critic(job.spec),
        trained=trained,
        exports=exports_kept(job),
        state=job.spec.trainer.optimizer_state,
    )
    if place is None or (free := shutil.disk_usage(place).free) >= needed:
        return []
    keep = job.spec.checkpoint.keep
    saved = (weights.parameters if trained is None else trained) + weights.parameters * has_critic(job.spec)
    checkpoint = show_bytes(checkpoint_bytes(saved, job.spec.trainer.optimizer_state))
    message = (
        f"{place} has {show_bytes(free)} free, the run needs {show_bytes(needed)}: {keep} + 1 checkpoints of "
        f"{checkpoint} and {VERSIONS_KEPT} versions of the weights"
        + (f", and {exports_kept(job)} exported models" if job.spec.export is not None else "")
    )
    fix = "Free space there, lower checkpoint.keep or export.keep, or choose another disk with --run-dir."
    return [Finding("disk-space", Severity.ERROR, "spec.checkpoint.keep", message, fix, job.where("spec.checkpoint"))]
