"""The tool `prepare`: makes the run directory of a job on a cluster, once, before any role starts.

Owns what `areal run` does before it starts roles, as far as it concerns the volume: looks at every source, writes the
recipe's copy and the dataset snapshots, and the resolved job last. Repeated, it finds that and changes nothing. Makes
no secret.
"""

from __future__ import annotations

import logging
from pathlib import Path

from areal.admit import answers
from areal.admit.datasets import Say, prepare_datasets
from areal.admit.facts import sources_in_pods, with_snapshots
from areal.admit.look import look as look_at_files
from areal.admit.resolve import check_model, check_reward_model, check_tokenizer, served_elsewhere
from areal.admit.teacher import refuse_teacher
from areal.errors import ConfigError, InfraError
from areal.files import write_atomically
from areal.plan import ResolvedJob, hub
from areal.plan.write import make_directories
from areal.spec import check, refuse
from areal.spec.locality import hub_models
from areal.workflow.tokenizer import Tokenizer

log = logging.getLogger("areal.prepare")


def run(resolved: ResolvedJob) -> str:
    """Prepare the run directory; answers what is in it.

    Raises ConfigError or DataError for what the user must correct, InfraError when the volume can't be written.
    """
    marker = resolved.layout.resolved
    if marker.exists():
        _check_same(ResolvedJob.load(marker), resolved)
        return f"{resolved.run_dir} is prepared already"
    said: list[str] = []
    places = {resolved.spec.teacher_field: resolved.teacher_path, "spec.reward.model.path": resolved.reward_model_path}
    for field, uri in hub_models(resolved.spec).items():
        if (place := places.get(field, resolved.model_path)) is not None:
            said.append(hub.download(uri, place))
    _check_sources(resolved)
    looked = look_at_files(resolved.job, sources_in_pods(resolved), Path("/"))
    for _, error in looked.faults:
        raise error
    refuse(check(resolved.job, looked.facts), resolved.name)
    try:
        make_directories(resolved.layout)
        if resolved.recipe_source is not None and resolved.recipe_path is not None:
            write_atomically(resolved.recipe_path, resolved.recipe_source.read_bytes())
        prepare_datasets(resolved, Path("/"), resolved.recipe_path, said.append)
        refuse(check(resolved.job, with_snapshots(resolved)), resolved.name)
        look_at_answers(resolved, said.append)
        resolved.save()
    except OSError as error:
        raise InfraError(
            f"the run directory {resolved.run_dir} can't be written: {error}",
            fix="see to the volume: its space, its access mode, and whether the pod's group may write to it",
        ) from error
    for words in said:
        log.info("%s", words)
    return "; ".join(said)


def look_at_answers(resolved: ResolvedJob, say: Say) -> None:
    """Raise DataError for a row whose expected answer, or whose tests, the job's verifier could never use."""
    for split in ("train", "evaluation"):
        answers.check_suites(resolved.job, answers.rows_of_snapshot(resolved.layout.dataset / split, split))
    if resolved.verifier != "math":
        return
    if not answers.installed():
        say("expected answers weren't read: math-verify isn't installed here")
        return
    for split in ("train", "evaluation"):
        directory = resolved.layout.dataset / split
        if not directory.exists():
            continue
        looked = answers.check_snapshot(directory, resolved.spec.reward.answer_field)
        if looked.left:
            say(
                f"dataset {split}: {looked.left} of {looked.left + looked.read} different answers were not read in time"
            )


def _check_same(earlier: ResolvedJob, now: ResolvedJob) -> None:
    if earlier.uid != now.uid:
        raise ConfigError(
            f"{now.run_dir} holds the run {earlier.uid}, this is {now.uid}",
            fix="give the job a directory of its own on the volume",
        )


def _check_sources(resolved: ResolvedJob) -> None:
    """Raise ConfigError for the first file that isn't where the job says."""
    dataset = resolved.dataset
    named = {
        "spec.recipe": resolved.recipe_source,
        "spec.trainer.hooks": resolved.hooks_path,
        "spec.dataset.train.jsonl": dataset.train.jsonl,
        "spec.dataset.evaluation.jsonl": dataset.evaluation.jsonl if dataset.evaluation else None,
        "spec.model": resolved.model_path,
        "spec.model.tokenizer": resolved.tokenizer_path,
        resolved.spec.teacher_field.removesuffix(".path"): resolved.teacher_path,
        "spec.reward.model": resolved.reward_model_path,
    }
    for field, path in named.items():
        if path is not None and not Path(path).exists():
            raise ConfigError(
                f"{field}: there is no {path} in the pod that prepares the run",
                fix="Correct the path; it is looked for on the volume of its pvc:// address, or in the image of tools.",
            )
    check_model(resolved.model_path, "spec.model")
    check_tokenizer(resolved.tokenizer_path, "spec.model.tokenizer")
    if resolved.reward_model_path is not None:
        check_reward_model(resolved.reward_model_path, "spec.reward.model")
    if (teacher := resolved.teacher_path) is not None:
        field = resolved.spec.teacher_field
        check_tokenizer(check_model(teacher, field, weights=not served_elsewhere(resolved.job)), field)
        student = Tokenizer.from_dir(resolved.tokenizer_path, model_dir=resolved.model_path)
        refuse_teacher(resolved.spec, student, resolved.model_path, teacher)
