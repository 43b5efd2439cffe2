"""`areal submit`: everything that a job needs is put on the cluster, then the job itself.

Owns the order. What can be refused is refused before a byte is sent: the job, as it will be, is first applied as a dry
run. What a submission that broke off leaves behind (a ConfigMap, a claim with files) is used by the next one.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from areal.errors import ArealError, ConfigError, DataError
from areal.plan.cluster_names import LABEL_RUN, run_claim, runtime_config_map
from areal.spec import RLJob
from areal.spec.locality import Locality, locality_of
from areal.spec.locate import must_locate
from areal.spec.quantity import show_bytes
from areal.spec.runtime import RuntimeSpec, volume_of
from areal.spec.status import JobStatus

from areal_operator.submit import inputs, manifests, send
from areal_operator.submit.cluster import Cluster, MissingRight, TakenError
from areal_operator.submit.follow import ended
from areal_operator.submit.inputs import INPUTS, Tree
from areal_operator.submit.manifests import Json
from areal_operator.submit.send import Programs, Say
from areal_operator.submit.temporary_pod import program_in, runtime_copy, runtime_of

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows one piece of work: what, and how many bytes; gives the function to be told of each part done."""


@dataclass(frozen=True)
class SubmitRequest:
    """What to submit. `job` passed `check`; `verifier` is to be set where the job names none."""

    job: RLJob
    base_dir: Path
    namespace: str
    verifier: str | None = None
    take_over: bool = False  # fields that other tools set to other values
    pods: Mapping[str, int] = field(default_factory=dict)  # planned memory of a role's pod, bytes


@dataclass(frozen=True)
class Objects:
    """Everything that is applied, in order. `claim` is None where the job names one that exists."""

    recipe: Json | None
    claim: Json | None
    job: Json
    trees: list[Tree]

    def listed(self) -> Json:
        """As a Kubernetes List."""
        made = [each for each in (self.recipe, self.claim, self.job) if each is not None]
        return {"apiVersion": "v1", "kind": "List", "items": made}

    def text(self) -> str:
        """As YAML documents; comments say what would be uploaded."""
        notes = [
            f"# {tree.field}: {len(tree.files)} files, {show_bytes(tree.size)}, from {tree.source}\n"
            for tree in self.trees
        ]
        return "".join(notes) + "---\n".join(_yaml(each) for each in self.listed()["items"])


class _Blocks(yaml.SafeDumper):
    """Text of several lines as it was written."""


_Blocks.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_STRING, text, style="|" if "\n" in text else None)
)
_STRING = "tag:yaml.org,2002:str"


def _yaml(obj: Json) -> str:
    return yaml.dump(obj, Dumper=_Blocks, sort_keys=False, width=1 << 16, allow_unicode=True)


def objects(request: SubmitRequest, runtime: RuntimeSpec | None, progress: Progress) -> Objects:
    """Objects to apply, without the claim where no runtime is known; reads and digests the files, changes nothing."""
    job, namespace = request.job, request.namespace
    name = job.metadata.name
    own = job.spec.storage.claim_name is None
    sources = inputs.local_sources(job, request.base_dir)
    with progress("reading files", inputs.total_size(sources)) as read:
        trees = inputs.digest_all(sources, INPUTS if own else f"{INPUTS}/{name}", read)
    recipe = _recipe(request)
    where = (recipe["metadata"]["name"], next(iter(recipe["data"]))) if recipe is not None else None
    claim_name = job.spec.storage.claim_name or run_claim(name)
    return Objects(
        recipe,
        manifests.claim(name, namespace, volume_of(job.spec, runtime)) if runtime is not None else None,
        inputs.on_cluster(job, namespace, claim_name, trees, where, request.verifier, request.pods),
        trees,
    )


def submit(
    request: SubmitRequest, cluster: Cluster, progress: Progress, say: Say, programs: Programs | None = None
) -> Json:
    """Put the job on the cluster; returns it as the API server has it."""
    try:
        runtime: RuntimeSpec | None = runtime_of(request.job, request.namespace, cluster)
    except MissingRight:
        runtime = None
    made = objects(request, runtime, progress)
    _refuse_another_recipe(made, cluster)
    _refuse_kept_claim(made, cluster)
    wanted = _apply_job(made.job, cluster, request.take_over, say)
    if made.recipe is not None:
        cluster.apply(made.recipe)
        say(f"recipe: ConfigMap {made.recipe['metadata']['name']}")
    if made.claim is not None:
        cluster.apply(made.claim)
    if made.trees:
        runtime = runtime or _runtime_by_operator(wanted, cluster, say)
        claim = request.job.spec.storage.claim_name or run_claim(request.job.metadata.name)
        pod = manifests.upload_pod(request.job, request.namespace, claim, runtime)
        _upload(made.trees, pod, cluster, progress, say, programs)
    job = cluster.apply(wanted, force=request.take_over)
    for child in (made.recipe, made.claim if request.job.spec.storage.retain != "All" else None):
        if child is not None:
            cluster.apply(manifests.owned(child, job))
    return job


def _runtime_by_operator(wanted: Json, cluster: Cluster, say: Say) -> RuntimeSpec:
    """The operator's copy of the job's runtime, for users who may not read runtimes.

    A job that isn't there yet is applied suspended: the operator accepts it, and makes copy and claim.
    """
    where, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
    there = cluster.get("RLJob", where, name)
    if there is None:
        there = cluster.apply({**wanted, "spec": {**wanted["spec"], "suspend": True}})
        say(f"you may not read runtimes, the operator may: rljob/{name} is suspended until its files are there")

    def late(seen: Json | None) -> ArealError:
        found = cluster.get("RLJob", where, name) or {}
        over = ended(name, JobStatus.model_validate(found.get("status") or {}), 0)
        return ConfigError(over[1] if over else f"no operator has accepted rljob/{name}", fix="Look at the operator.")

    copy, uid = runtime_config_map(name), there["metadata"]["uid"]
    return cluster.until("ConfigMap", where, copy, lambda seen: runtime_copy(seen, uid), timeout_s=_WAIT_S, late=late)


def _refuse_kept_claim(made: Objects, cluster: Cluster) -> None:
    """A claim that outlived its job isn't the next one's because it has the same name."""
    name, namespace = made.job["metadata"]["name"], made.job["metadata"]["namespace"]
    claim = run_claim(name)
    found = (cluster.get("PersistentVolumeClaim", namespace, claim) or {}).get("metadata", {}).get("labels") or {}
    if LABEL_RUN not in found or made.job["spec"].get("storage", {}).get("claimName") is not None:
        return
    job = cluster.get("RLJob", namespace, name)
    if job is None or job["metadata"]["uid"] != found[LABEL_RUN]:
        raise ConfigError(
            f"the claim {claim} in {namespace} holds an earlier run of {name}, which outlived its job",
            fix=f"Submit as metadata.name={name}-2, share it, storage.claimName={claim}, or remove it: "
            f"`areal jobs --kept --delete {claim}`.",
        )


_WAIT_S = 30.0
_SCALED = "spec.generation.replicas"


def _apply_job(job: Json, cluster: Cluster, take_over: bool, say: Say) -> Json:
    """The job to apply, tried as a dry run: without the fleet's size where somebody else, an autoscaler say, sets it.

    Raises TakenError for any other field that somebody else set, unless they are to be taken over.
    """
    try:
        cluster.apply(job, force=take_over, dry_run=True)
    except TakenError as error:
        owners = sorted({one.manager for one in error.taken if one.field == _SCALED})
        if not owners:
            raise
        spec = job["spec"]
        generation = {name: value for name, value in spec["generation"].items() if name != "replicas"}
        job = {**job, "spec": {**spec, "generation": generation}}
        cluster.apply(job, dry_run=True, force=False)
        say(f"{_SCALED} stays as {owners[0]} set it")
    return job


def _recipe(request: SubmitRequest) -> Json | None:
    """The ConfigMap of a recipe that is on this machine."""
    job = request.job
    file = job.spec.recipe.file if job.spec.recipe else None
    if file is None or locality_of(file) is not Locality.RELATIVE:
        return None
    where, fix = job.where("spec.recipe.file"), "Correct recipe.file."
    path = must_locate(file, request.base_dir, what="the recipe", where=where, fix=fix)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as text: {error}", fix="Save the recipe as UTF-8.") from error
    return manifests.recipe_config_map(job.metadata.name, request.namespace, path.name, text)


def _refuse_another_recipe(made: Objects, cluster: Cluster) -> None:
    """A job that exists keeps its recipe: its pods may read the ConfigMap again."""
    if made.recipe is None:
        return
    metadata = made.recipe["metadata"]
    name, namespace = made.job["metadata"]["name"], metadata["namespace"]
    if cluster.get("RLJob", namespace, name) is None:
        return
    kept = cluster.get("ConfigMap", namespace, metadata["name"])
    if kept is not None and kept.get("data") != made.recipe["data"]:
        raise ConfigError(
            f"{name} exists in {namespace} and was submitted with another recipe",
            fix=f"Submit under another name, metadata.name={name}-2, or delete it: `kubectl delete rljob {name}`.",
        )


def _upload(
    trees: list[Tree], pod: Json, cluster: Cluster, progress: Progress, say: Say, programs: Programs | None
) -> None:
    with program_in(pod, manifests.RECEIVE, cluster, say, "to send files through", programs) as channel:
        missing = send.plan(trees, channel)
        files = {f"{tree.directory}/{file.path}" for tree in trees for file in tree.files}
        size = sum(file.size for file in missing.values())
        say(f"inputs: {len(files)} files, {len(files) - len(missing)} of them there already")
        with progress("sending files", size) as sent:
            send.send(missing, channel, sent)
