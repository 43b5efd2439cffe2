"""Resolver of a job for pods: decides what the job file leaves open, refuses what a cluster can't do.

Pure: what a pod finds on its volumes is looked at by the pod that prepares the run. Every name comes from
`cluster_names`.
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from areal.admit.recipe_probe import defines_in
from areal.errors import ConfigError, DataError
from areal.plan import cluster_names as names
from areal.plan import remote
from areal.plan.cluster_names import Role
from areal.plan.layout import RunLayout
from areal.plan.redis_conf import RedisPlaces, redis_acl, redis_text
from areal.plan.resolved import Endpoints, ResolvedJob, Verifier
from areal.plan.role_specs import counts, long_running, redis_logins, spec_of
from areal.spec.cluster import PodPatch
from areal.spec.job import JobSpec, Metadata, RLJob
from areal.spec.locality import in_store
from areal.spec.sources import DatasetSource, on_volume

_BUILT_IN_WORKFLOWS = ("rlvr", "multi-turn")  # these leave the scoring to somebody else
_HERE = ("./", "../", "~")  # how a Hugging Face path says that it means a folder
_REWARD_ROLES: dict[Verifier | None, Role] = {"model": Role.REWARD_MODEL}  # the others are Role.REWARD's
_BIND = "0.0.0.0"  # a pod has a network of its own; who may reach it is the NetworkPolicies' business


class ClusterRefusal(ConfigError):
    """A cluster can't run the job as it is. `reason` is that of the condition Accepted."""

    def __init__(self, reason: str, message: str, *, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.reason = reason


def resolve_for_pods(job: RLJob, *, namespace: str, uid: str, recipe_source: str | None) -> ResolvedJob:
    """The job as its pods read it.

    Args:
        job: a valid job; whether it is suspended and who labelled it makes no difference.
        namespace: where its objects live.
        uid: of the object; a job that is deleted and made again is another run.
        recipe_source: the recipe's text where it comes from a ConfigMap, else None.

    Raises:
        ClusterRefusal: a file of the user's machine is named, or something that clusters don't do yet.
    """
    name = job.metadata.name
    job = _as_run(job, namespace)
    _refuse_unsafe(job)
    if job.spec.shared_cards and job.spec.pod_template.generation != PodPatch():
        raise ClusterRefusal(
            "SharedPlacement",
            "spec.podTemplate.generation: with placement: shared, servers are processes of the trainer's pod",
            fix="Say it of podTemplate.trainer, whose resources are both's.",
        )
    layout = RunLayout(Path(names.RUN_DIR))
    model = _model(job, layout)
    source = _recipe(job)
    verifier = _verifier(job, recipe_source)
    external = job.spec.replay.backend == "External"
    users = redis_logins().values() if job.spec.is_rl else ()
    gateways = job.spec.rollout.gateway.replicas if job.spec.is_rl else 0

    def address(role: Role, purpose: str = "grpc") -> str:
        return f"{names.service_host(name, namespace, role)}:{spec_of(role).pod_ports[purpose]}"

    trainer = names.pod_host(name, namespace, Role.TRAINER, 0)
    return ResolvedJob(
        job=job,
        uid=uid,
        digest=job.digest(),
        run_dir=layout.root,
        model_path=model,
        tokenizer_path=_file(job.spec.model.tokenizer, "model.tokenizer") or model,
        recipe_source=source,
        recipe_path=layout.recipe / source.name if source else None,
        hooks_path=_file(job.spec.trainer.hooks, "trainer.hooks"),
        reward_model_path=_reward_model(job, layout),
        teacher_path=_teacher(job, layout),
        dataset=job.spec.dataset.replaced(
            {
                field: _source(source, field.removeprefix("spec."), layout)
                for field, source in job.spec.dataset.named.items()
            }
        ),
        verifier=verifier,
        endpoints=Endpoints(
            controller=address(Role.CONTROLLER) if job.spec.is_rl else "",
            redis=None if external or not job.spec.is_rl else address(Role.REDIS, "main"),
            reward=address(_REWARD_ROLES.get(verifier, Role.REWARD)) if verifier not in (None, "custom") else None,
            reward_custom=address(Role.REWARD_CUSTOM) if verifier == "custom" else None,
            boxes=address(Role.BOXES) if job.spec.is_rl and job.spec.rollout.boxes.max_concurrent else None,
            weights=address(Role.WEIGHTS) if job.spec.servers_fetch else None,
            trainer=f"{trainer}:{spec_of(Role.TRAINER).pod_ports['grpc']}" if job.spec.weights_by_group else None,
            gateways=[
                f"{names.pod_host(name, namespace, Role.GATEWAY, at)}:{names.GRPC_PORT}" for at in range(gateways)
            ],
            gateway_urls=[f"http://{names.front_host(name, namespace, Role.GATEWAY)}:{names.HTTP_PORT}"][:gateways],
            rendezvous=f"{trainer}:{names.RENDEZVOUS_PORT}",
        ),
        redis_users={} if external else {user: _access(names.password_key(user)) for user in users},
        redis_urls={user: _access(names.url_key(user)) for user in users} if external else {},
        ports=_ports(job.spec),
        bind=_BIND,
        access_dir=Path(names.ACCESS_DIR),
        namespace=namespace,
        patience_s=float(job.spec.run_policy.startup_deadline_seconds),
    )


def roles_of(resolved: ResolvedJob) -> dict[Role, int]:
    """The long-running roles that have pods in a job, and how many, in the order in which they are needed."""
    found = counts(resolved.spec, resolved.verifier)
    if resolved.in_one_pod:
        del found[Role.GENERATION]
    return found


def _ports(spec: JobSpec) -> dict[str, dict[str, int]]:
    """Ports by role and, of servers in the trainer's pod, by row."""
    found = {f"{role}": spec_of(role).pod_ports for role in long_running()}
    if spec.shared_cards:
        del found[Role.GENERATION]
        rows = {spec_of(Role.GENERATION).row(index): index for index in range(spec.generation.replicas)}
        found |= {row: names.ports_beside_trainer(index) for row, index in rows.items()}
    return found


def redis_files(resolved: ResolvedJob, passwords: Mapping[str, str], *, by_tls: bool = False) -> tuple[str, str]:
    """The texts of redis.conf and of users.acl for the job's own Redis in a pod."""
    places = RedisPlaces(
        bind="* -::*",  # IPv6 too, where there is any
        port=names.REDIS_PORT,
        directory=Path(names.REDIS_DATA_DIR),
        aclfile=Path(names.ACCESS_DIR) / names.ACL_KEY,
        certificates=Path(names.TLS_DIR) if by_tls else None,
    )
    return redis_text(resolved.spec.replay.budget_bytes, places), redis_acl(resolved, passwords, by_tls=by_tls)


def _as_run(job: RLJob, namespace: str) -> RLJob:
    """The job without what says nothing about the run, so that the pods' file changes only when the run does."""
    metadata = Metadata(name=job.metadata.name, namespace=namespace)
    return job.model_copy(update={"metadata": metadata, "spec": job.spec.model_copy(update={"suspend": False})})


def _access(key: str) -> Path:
    return Path(names.ACCESS_DIR) / key


def _volume(source: str) -> tuple[str, PurePosixPath]:
    """Claim and path of `pvc://claim/path`."""
    claim, _, below = source.removeprefix("pvc://").partition("/")
    path = PurePosixPath(below)
    if not claim or path.is_absolute() or ".." in path.parts:
        raise ClusterRefusal(
            "InvalidSpec",
            f"{source!r} names no path on a volume claim",
            fix="Write pvc://<claim>/<path>, with a path below the volume's root.",
        )
    return claim, path


def _file(source: str | None, field: str) -> Path | None:
    """Where pods find a source: on a volume, or in their image."""
    if source is None:
        return None
    if on_volume(source):
        claim, path = _volume(source)
        return Path(names.claim_dir(claim) / path)
    if PurePosixPath(source).is_absolute():
        return Path(source)
    raise ClusterRefusal(
        "LocalPath",
        f"spec.{field} is {source!r}, a path on your machine, which the cluster can't see",
        fix="Submit the job with `areal submit`, which uploads files, or name pvc://<claim>/<path> or an absolute path "
        "in the role's image.",
    )


def _refuse_unsafe(job: RLJob) -> None:
    """Whoever runs programs on a cluster runs them in a sandbox."""
    code = job.spec.reward.programs
    if job.spec.reward.verifier == "code" and (code.allow_unsafe or code.min_tier == "T0"):
        raise ClusterRefusal(
            "NotAvailable",
            "spec.reward.code allows programs to run without a sandbox, which a cluster never does",
            fix="Remove reward.code.allowUnsafe and set reward.code.minTier to T2, T3 or T4.",
        )


def _teacher(job: RLJob, layout: RunLayout) -> Path | None:
    if (teacher := job.spec.teacher) is None:
        return None
    return (
        layout.teacher
        if remote.is_remote(teacher.path)
        else _file(teacher.path, job.spec.teacher_field.removeprefix("spec."))
    )


def _reward_model(job: RLJob, layout: RunLayout) -> Path | None:
    reward = job.spec.reward
    if not job.spec.is_rl or reward.verifier != "model" or reward.model is None:
        return None
    if remote.is_remote(reward.model.path):
        return layout.reward_model
    return _file(reward.model.path, "reward.model.path")


def _model(job: RLJob, layout: RunLayout) -> Path:
    """Where pods find the start model; one that is fetched is downloaded there by the pod that prepares the run."""
    model = job.spec.model
    if remote.is_remote(model.uri):
        return layout.start_model
    found = _file(model.uri, "model.uri") or _file(model.path, "model.path")
    if found is None:
        raise ClusterRefusal("InvalidSpec", "spec.model names no model", fix="Give model.uri or model.path.")
    return found


def _recipe(job: RLJob) -> Path | None:
    recipe = job.spec.recipe
    if recipe is None:
        return None
    if recipe.config_map is not None:
        return Path(names.RECIPE_DIR / recipe.config_map.key)
    return _file(recipe.file, "recipe.file")


def _verifier(job: RLJob, recipe_source: str | None) -> Verifier | None:
    """Who scores: what the job names, else the recipe's `reward`.

    A recipe on a volume or in an image can't be read here: it is taken to define `reward` where a built-in workflow
    needs one, and a workflow of its own is taken to score by itself unless the job names `custom`.
    """
    spec = job.spec
    if not spec.is_rl:
        return None
    if spec.reward.verifier is not None or spec.recipe is None:
        return spec.reward.verifier
    if recipe_source is None:
        if spec.recipe.config_map is not None:
            raise ClusterRefusal(
                "RecipeNotFound",
                f"there is no ConfigMap {spec.recipe.config_map.name!r} with the key {spec.recipe.config_map.key!r}",
                fix="Create it in the job's namespace, or submit the job with `areal submit`.",
            )
        return "custom" if spec.rollout.workflow in _BUILT_IN_WORKFLOWS else None
    try:
        return "custom" if defines_in(recipe_source, "reward", "the recipe") else None
    except DataError as error:
        raise ClusterRefusal("InvalidSpec", error.message, fix=error.fix) from None


def _source(source: DatasetSource, field: str, layout: RunLayout) -> DatasetSource:
    fetched = layout.fetched / field / PurePosixPath(source.path).name if in_store(source.path) else None
    if source.jsonl is not None:
        return source.model_copy(update={"jsonl": str(fetched or _file(source.jsonl, f"{field}.jsonl"))})
    named = source.hugging_face
    if named is not None and fetched is not None:
        return source.model_copy(update={"hugging_face": named.model_copy(update={"path": str(fetched)})})
    if named is not None and (on_volume(named.path) or named.path.startswith(("/", *_HERE))):
        path = str(_file(named.path, f"{field}.huggingFace.path"))
        return source.model_copy(update={"hugging_face": named.model_copy(update={"path": path})})
    return source
