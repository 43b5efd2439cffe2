"""JobVerdict on a job: everything that `areal check` refuses, and so `areal run`, `areal submit` and `areal prepare`.

Owns the order of the questions: where its files are, what they tell, the job's rules, memory, this machine. Writes and
starts nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from areal.admit.facts import judged, read
from areal.admit.machine import host_facts, preflight, unused
from areal.admit.memory import memory_of, pods_of, running_of
from areal.admit.memory.volume import caches_of
from areal.admit.recipe_probe import can_try_hooks, has_hooks, probe_hooks
from areal.admit.resolve import verifier_of
from areal.admit.sources import Sources, sources_of
from areal.errors import ArealError, DataError, ExitCode, InfraError
from areal.spec import Finding, RLJob, Severity, for_clusters_only, refuse


@dataclass(frozen=True)
class JobVerdict:
    """What speaks against a job. `faults` are the errors among the findings that files are the cause of."""

    findings: tuple[Finding, ...]
    faults: tuple[ArealError, ...]
    unseen: tuple[str, ...]
    memory: tuple[tuple[str, str], ...]  # what GPUs and disk hold: subject and sentence
    pods: Mapping[str, int]  # planned memory of pods that have GPUs, bytes by role
    planned: tuple[str, ...]  # overrides of fields that the job leaves to the plan
    read_as: tuple[tuple[str, str], ...]  # how the rows of each dataset are read: its field and sentence
    sources: Sources
    scores_itself: bool  # the workflow or its agent: no service is needed for it
    defines_reward: bool  # the recipe, and no verifier is named

    @property
    def refused(self) -> bool:
        return bool(_refusing(self.findings))

    @property
    def exit_code(self) -> ExitCode:
        """Code that `areal check` and a refused run end with."""
        if self.faults:
            return self.faults[0].exit_code
        return ExitCode.CONFIG if self.refused else ExitCode.DONE

    def refuse(self, job_file: Path | str) -> None:
        """Raise what `areal check` calls an error: a file's fault as it is, else the job's."""
        if self.faults:
            raise self.faults[0]
        refuse(self.findings, job_file)


def admit(job: RLJob, base_dir: Path, run_dir: Path | None = None, model_config: Path | None = None) -> JobVerdict:
    """Look at everything that a run would meet in its first minute, apart from programs and expected answers.

    Args:
        run_dir: where the run would be, when its roles run on this machine.
        model_config: a config.json to plan memory by, for a model that isn't on this machine.
    """
    here = run_dir is not None and job.spec.runtime_ref is None
    sources = sources_of(job, base_dir)
    known = read(job, sources, here=here, model_config=model_config)
    findings = judged(job, known, base_dir)
    host = host_facts(run_dir) if here and run_dir is not None else None
    if host is not None:
        findings += [*caches_of(job, host.memory), *unused(job, host.gpus)]
    memory: list[tuple[str, str]] = []
    pods: Mapping[str, int] = {}
    planned: tuple[str, ...] = ()
    if known.planned is not None and not known.faults and job.spec.is_whole:
        of_teacher = known.teacher.config if known.teacher else None
        found, memory = memory_of(job, known.planned, of_teacher, parameters=known.facts.model_parameters, host=host)
        findings += found
        pods = pods_of(job, known.planned, of_teacher)
        if running := running_of(job, known.planned):
            planned = (f"generation.engine.maxRunningRequests={running}",)
    faults = [error for _, error in known.faults]
    if here and model_config is None and not for_clusters_only(job) and not _refusing(findings):
        findings += _lacking(job, sources)
        hooks = [] if _refusing(findings) else hook_findings(job, sources)
        findings, faults = [*findings, *hooks], [_data_error(finding) for finding in hooks]
    findings.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    unnamed = job.spec.reward.verifier is None
    return JobVerdict(
        tuple(findings),
        tuple(faults),
        tuple(known.unseen),
        tuple(memory),
        pods,
        planned,
        tuple(known.read_as),
        sources,
        unnamed and not (job.spec.recipe and known.facts.recipe_defines_reward is not False),
        unnamed and bool(known.facts.recipe_defines_reward),
    )


def _lacking(job: RLJob, sources: Sources) -> list[Finding]:
    """What this machine lacks for a run: GPUs, Redis, packages."""
    try:
        preflight(job, verifier_of(job, sources.recipe))
    except ArealError as error:
        return [Finding("machine", Severity.ERROR, "spec", error.message, error.fix, job.where("spec"))]
    return []


def hook_findings(job: RLJob, sources: Sources) -> list[Finding]:
    """What is wrong with functions in the trainer's place, where the trainer's packages are here to try them."""
    if not job.spec.is_rl or not can_try_hooks(job.spec) or not has_hooks(sources.hooks, sources.recipe):
        return []
    field = "spec.trainer.hooks" if sources.hooks else "spec.recipe.file"
    try:
        probe_hooks(sources.recipe, sources.hooks, job.spec)
    except ArealError as error:
        return [Finding("hooks", Severity.ERROR, field, error.message, error.fix, job.where(field))]
    return []


def examined(job: RLJob, verdict: JobVerdict) -> JobVerdict:
    """The verdict with what a run asks behind it: of all rows then, of the first ones here, and of the sandbox.

    A job that names a platform means that platform's sandbox, not this machine's.
    """
    if verdict.faults:
        return verdict
    findings: list[Finding] = []
    if job.spec.runtime_ref is None and (job.spec.reward.verifier == "code" or job.spec.rollout.boxes.max_concurrent):
        from areal.admit.machine import sandbox_findings

        try:
            findings += sandbox_findings(job)
        except InfraError as error:
            findings.append(Finding("code-here", Severity.WARNING, "spec.reward.code", error.message, error.fix))
    faults: tuple[ArealError, ...] = ()
    if job.spec.reward.verifier in ("code", "math"):
        from areal.admit.answers import row_findings

        of_rows = row_findings(job, verdict.sources)
        refused = verdict.refused or _refusing(findings)
        findings, faults = [*findings, *of_rows], () if refused else tuple(map(_data_error, _refusing(of_rows)))
    return replace(verdict, findings=(*verdict.findings, *findings), faults=faults)


def _refusing(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def _data_error(finding: Finding) -> DataError:
    return DataError(f"{finding.where or finding.field}: {finding.message}", fix=finding.fix)
