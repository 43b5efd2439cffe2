"""All rules against one job."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from areal.errors import ConfigError
from areal.spec.job import RLJob
from areal.spec.locality import Locality, locality_of, named_files, where_models_come_from, where_rows_come_from
from areal.spec.locate import candidates, is_data_name, locate
from areal.spec.rules import Facts, Finding, Severity, rules_in

_AREAS = (  # in the order in which their findings are told; each has a module rules_AREA
    "trainings", "sources", "sglang", "datasets", "agents", "code", "asynchrony", "algorithm", "correction", "teacher",
    "learning", "gpus", "mesh", "lora", "cluster",
)  # fmt: skip
RULES = tuple(rule for area in _AREAS for rule in rules_in(import_module(f"areal.spec.rules_{area}")))


def check(job: RLJob, facts: Facts | None = None, *, base_dir: Path | None = None) -> list[Finding]:
    """What is wrong with a job: errors first, in the order of the rules.

    Args:
        job: a loaded job.
        facts: what is known of recipe, dataset, tokenizer and model; rules that need more say nothing.
        base_dir: the job file's directory; with it, also look whether the files that the job names are there.
    """
    known = Facts() if facts is None else facts
    found = [
        Finding(rule.id, rule.severity, rule.field, message, rule.fix, job.where(rule.field))
        for rule in RULES
        if (message := rule.broken(job, known)) is not None
    ]
    if base_dir is not None:
        found += _missing_files(job, base_dir)
    return sorted(found, key=lambda finding: finding.severity is not Severity.ERROR)


def refuse(findings: Sequence[Finding], job_file: Path | str) -> None:
    """Raise one ConfigError with all findings that are errors; nothing when there is none."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return
    lines = "".join(f"\n  {finding.where or finding.field}: {finding.message} [{finding.rule}]" for finding in errors)
    fixes = " ".join(dict.fromkeys(finding.fix for finding in errors))
    raise ConfigError(f"{job_file} can't run:{lines}", fix=fixes)


_ALWAYS_FILES = ("spec.recipe.file", "spec.model.tokenizer", "spec.trainer.hooks")


def _missing_files(job: RLJob, base_dir: Path) -> list[Finding]:
    findings = []
    for field, path in {**named_files(job.spec), **_data_files(job)}.items():
        where = locality_of(path)
        fetched = where is Locality.HUB or (where is Locality.STORE and field not in _ALWAYS_FILES)
        if where is Locality.VOLUME or fetched or field == "spec.model.uri" or locate(path, base_dir) is not None:
            continue
        if where is Locality.ABSOLUTE and job.spec.runtime_ref is not None:
            continue  # in the image that the runtime names
        tried = " and ".join(str(place) for place in candidates(path, base_dir))
        fix = f"Correct {field.removeprefix('spec.')}."
        if field in ("spec.model.path", job.spec.teacher_field, "spec.reward.model.path"):
            fix = where_models_come_from(path, field)
        elif ".dataset." in field:
            fix = where_rows_come_from(path, field)
        message = f"{path!r} is not there: tried {tried}"
        if where is Locality.STORE:
            message = f"{path!r} is in an object store, from which models and rows are read, and nothing else"
        findings.append(Finding("file-missing", Severity.ERROR, field, message, fix, job.where(field)))
    return findings


def _data_files(job: RLJob) -> dict[str, str]:
    """Hugging Face paths that are files by their names, by dotted field."""
    named = {f"{field}.huggingFace.path": source.hugging_face for field, source in job.spec.dataset.named.items()}
    return {field: block.path for field, block in named.items() if block is not None and is_data_name(block.path)}
