"""The tool `prepare`: makes the run directory of a job on a cluster, once, before any role starts.

Owns what `areal run` does before it starts roles, as far as it concerns the volume: looks at every source, writes the
recipe's copy and the dataset snapshots, and the resolved job last. Repeated, it finds that and changes nothing. Makes
no secret.
"""

import logging
import shutil
from pathlib import Path

from areal.admit import answers
from areal.admit.facts import read
from areal.admit.resolve import refuse_another_job
from areal.admit.rows import Say, prepare_datasets, with_snapshots
from areal.admit.sources import sources_in_pods
from areal.errors import ConfigError, InfraError
from areal.files import write_atomically
from areal.object_store import ObjectStore
from areal.plan import ResolvedJob, remote
from areal.plan.write import make_directories
from areal.record import archive
from areal.spec import check, refuse
from areal.spec.locality import remote_models, remote_rows

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
    for field, uri in remote_models(resolved.spec).items():
        if (place := places.get(field, resolved.model_path)) is not None:
            said.append(remote.download(uri, place, resolved.store_credentials))
    for field, uri in remote_rows(resolved.spec).items():
        place = Path(str(resolved.dataset.named[field].path))
        said.append(remote.download(uri, place, resolved.store_credentials))
    known = read(resolved.job, sources_in_pods(resolved), here=False)
    for _, error in known.faults:
        raise error
    refuse(check(resolved.job, known.facts), resolved.name)
    try:
        make_directories(resolved.layout)
        if resolved.recipe_source is not None and resolved.recipe_path is not None:
            write_atomically(resolved.recipe_path, resolved.recipe_source.read_bytes())
        restore_run(resolved, said.append)
        if resolved.spec.storage.restore is None or not resolved.layout.dataset.exists():
            prepare_datasets(resolved, resolved.recipe_path, said.append)
        refuse(check(resolved.job, with_snapshots(resolved)), resolved.name)
        look_at_answers(resolved, said.append)
        resolved.save()
        shutil.rmtree(resolved.layout.fetched, ignore_errors=True)
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
    if resolved.spec.dataset.bad_rows == "drop":
        return  # such rows were looked for when the datasets were prepared, and have gone
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


def restore_run(resolved: ResolvedJob, say: Say) -> None:
    """Look at the job's object store, and put the run there that it goes on from into the run directory.

    Raises ConfigError when that was another job or the store refuses, DataError when the copy is damaged, InfraError.
    """
    storage, given = resolved.spec.storage, resolved.store_credentials
    if storage.store is not None:
        archive.begin(ObjectStore.connect(resolved.store_address, given))
    if storage.restore is None:
        return
    store = ObjectStore.connect(storage.restore, given)
    earlier = archive.file_of(store, resolved.layout.resolved.name)
    refuse_another_job(ResolvedJob.parse(earlier, storage.restore).job, resolved.job)
    say(f"{archive.restore(store, resolved.run_dir, say)} files are from {storage.restore}")


def _check_same(earlier: ResolvedJob, now: ResolvedJob) -> None:
    if earlier.uid != now.uid:
        raise ConfigError(
            f"{now.run_dir} holds the run {earlier.uid}, this is {now.uid}",
            fix="give the job a directory of its own on the volume",
        )
