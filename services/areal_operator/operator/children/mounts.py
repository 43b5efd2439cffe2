"""Volumes and mounts of a role's pod: no more than the role reads or writes.

Owns every volume and mount under /areal, and Redis' data. User code (workers, the recipe's reward) reaches neither the
evidence nor the journal, checkpoints or weights: of the run directory it has the recipe to read and a folder for
trajectories.
"""

from collections.abc import Iterable
from itertools import product
from pathlib import Path, PurePosixPath

from areal.errors import ConfigError
from areal.plan import cluster_names as names
from areal.plan.cluster_names import Role
from areal.plan.layout import RunLayout
from areal.plan.resolved import ResolvedJob
from areal.plan.role_specs import SourceKind, spec_of
from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE

from areal_operator.operator.children.files import VOLUME, files_name
from areal_operator.operator.children.wanted import JobBlueprint, Json

OWNED_ROOT = PurePosixPath("/areal")  # Nobody else mounts anything at or below this
ROOT_MOUNT = OWNED_ROOT / "volume"  # The root of the run's claim, for the container that makes the run directory in it

_SECRET_MODE = 0o440  # root's, readable by the pod's group
_LAYOUT = RunLayout(Path(names.RUN_DIR))


def _read_in_place(resolved: ResolvedJob, role: Role) -> list[Path | None]:
    """Claims whose files a role reads in place. Recipe and datasets are copied into the run directory by prepare."""
    return [path for source in spec_of(role).reads for path in _places(resolved, source)]


def _places(resolved: ResolvedJob, source: SourceKind) -> list[Path | None]:
    match source:
        case SourceKind.MODEL:
            return [resolved.model_path, resolved.tokenizer_path, resolved.teacher_path]
        case SourceKind.REWARD_MODEL:
            return [resolved.reward_model_path]
        case SourceKind.HOOKS:
            return [resolved.hooks_path]
        case SourceKind.RECIPE:
            return [resolved.recipe_source]
        case SourceKind.DATASET:
            data = resolved.dataset.named.values()
            files = [split.jsonl or (split.hugging_face.path if split.hugging_face else None) for split in data]
            return [Path(file) for file in files if file]


def volumes(w: JobBlueprint, role: Role) -> list[Json]:
    """The volumes that `mounts` names."""
    key = names.REDIS_CONF_KEY if role is Role.REDIS else names.RESOLVED_KEY
    items = [{"key": key, "path": key}]
    found: list[Json] = [{"name": VOLUME, "configMap": {"name": files_name(w), "items": items}}]
    if sources := _access(w, role):
        found.append({"name": "access", "projected": {"defaultMode": _SECRET_MODE, "sources": sources}})
    if secret := _store_secret(w, role):
        found.append({"name": "store", "secret": {"secretName": secret, "defaultMode": _SECRET_MODE}})
    if w.encrypted and role in w.roles:
        items = [{"key": key, "path": key} for key in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
        source = {"secretName": names.tls_secret(w.name, role), "defaultMode": _SECRET_MODE, "items": items}
        found.append({"name": "tls", "secret": source})
    if spec_of(role).asks_api_server:
        items = [{"key": names.CLUSTER_CA_KEY, "path": names.CLUSTER_CA_KEY}]
        found.append({"name": "cluster", "configMap": {"name": names.CLUSTER_CA_MAP, "items": items}})
    if role is Role.REDIS:
        found.append({"name": "data", "persistentVolumeClaim": {"claimName": names.workload(w.name, Role.REDIS)}})
    config_map = w.job.spec.recipe.config_map if w.job.spec.recipe else None
    if role is Role.PREPARE and config_map is not None:
        items = [{"key": config_map.key, "path": config_map.key}]
        found.append({"name": "recipe", "configMap": {"name": config_map.name, "items": items}})
    for index, volume in enumerate(w.patch(role)[1].volumes):
        if volume.config_map:
            found.append({"name": f"given-{index}", "configMap": {"name": volume.config_map}})
        if volume.secret:
            source = {"secretName": volume.secret, "defaultMode": _SECRET_MODE}
            found.append({"name": f"given-{index}", "secret": source})
    used = {mount["name"] for mount in mounts(w, role)}
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in _claims(w).items()]
    return found + [volume for volume in claims if volume["name"] in used]


def mounts(w: JobBlueprint, role: Role) -> list[Json]:
    """Volume mounts of the role's own container."""
    found: list[Json] = [{"name": VOLUME, "mountPath": str(names.JOB_DIR), "readOnly": True}]
    if _access(w, role):
        found.append({"name": "access", "mountPath": str(names.ACCESS_DIR), "readOnly": True})
    if _store_secret(w, role):
        found.append({"name": "store", "mountPath": str(names.STORE_DIR), "readOnly": True})
    if w.encrypted and role in w.roles:
        found.append({"name": "tls", "mountPath": str(names.TLS_DIR), "readOnly": True})
    if spec_of(role).asks_api_server:
        found.append({"name": "cluster", "mountPath": str(names.CLUSTER_DIR), "readOnly": True})
    if role is Role.REDIS:
        found.append({"name": "data", "mountPath": str(names.REDIS_DATA_DIR)})
    if role is Role.PREPARE and w.job.spec.recipe and w.job.spec.recipe.config_map:
        found.append({"name": "recipe", "mountPath": str(names.RECIPE_DIR), "readOnly": True})
    for part in spec_of(role).run_parts if reaches_volumes(w, role) else ():
        if part.with_recipe and w.resolved.recipe_path is None:
            continue
        if part.with_hub_model and part.path not in (w.resolved.model_path, w.resolved.reward_model_path):
            continue
        if part.with_token_audit and not w.job.spec.recording.token_audit:
            continue
        below = part.path.relative_to(_LAYOUT.root)
        sub_path = PurePosixPath(names.run_sub_path(w.name, w.uid)) / below
        mount: Json = {"name": "run", "mountPath": str(part.path), "subPath": str(sub_path)}
        found.append(mount if part.writable else {**mount, "readOnly": True})
    cache = w.job.spec.storage.cache_claim_name
    if cache is not None and spec_of(role).holds_model:  # which compiles kernels
        found.append({"name": _claims(w)[cache], "mountPath": str(names.KERNELS_DIR)})
    found += _source_mounts(w, role)
    given = _given_mounts(w, role)
    for mine, ours in product(given, found):
        place, known = PurePosixPath(mine["mountPath"]), PurePosixPath(ours["mountPath"])
        if place.is_relative_to(known) or known.is_relative_to(place):
            words = f"{w.patch(role)[0]}.volumes: {place} is in the way of {known}, which these pods have"
            raise ConfigError(words, fix="Mount it elsewhere, for example at /mnt/data.")
    return found + given


def _given_mounts(w: JobBlueprint, role: Role) -> list[Json]:
    """Those of the job's own volumes. Claims that the operator made hold evidence, journal and ledger: not them."""
    field, patch = w.patch(role)
    found: list[Json] = []
    for index, volume in enumerate(patch.volumes):
        if volume.pvc in (run_claim_name(w), names.workload(w.name, Role.REDIS)):
            raise ConfigError(f"{field}.volumes: {volume.pvc} is the run's own claim", fix="Name another claim.")
        name = _claims(w)[volume.pvc] if volume.pvc else f"given-{index}"
        mount: Json = {"name": name, "mountPath": volume.mount_path}
        found.append({**mount, "readOnly": True} if volume.read_only else mount)
    return found


def reaches_volumes(w: JobBlueprint, role: Role) -> bool:
    """Whether a role's pods have the volumes that its row names: servers may read over the network instead."""
    return role is not Role.GENERATION or not w.resolved.spec.servers_fetch


def root_mount() -> Json:
    """The whole claim of the run, writable."""
    return {"name": "run", "mountPath": str(ROOT_MOUNT)}


def run_directory(w: JobBlueprint) -> PurePosixPath:
    """The run directory below `root_mount`."""
    return ROOT_MOUNT / names.run_sub_path(w.name, w.uid)


def run_claim_name(w: JobBlueprint) -> str:
    """The claim that holds the run directory: the user's, or the job's own."""
    return w.job.spec.storage.claim_name or names.run_claim(w.name)


def _access(w: JobBlueprint, role: Role) -> list[Json]:
    """The role's own items of the job's Secret, and its URL of an external Redis. Empty for a role without any.

    A source must name its items: one without them would show the whole Secret.
    """
    external = w.job.spec.replay.external if w.resolved.redis_urls else None
    login = spec_of(role).redis_login
    own = Role.REDIS in w.roles
    every = dict.fromkeys(key for one in w.hosted(role) for key in spec_of(one).secret_keys)
    keys = [key for key in every if own or login is None or key != names.password_key(login)]
    if w.one_token and names.DIGESTS_KEY in keys:
        keys = [names.TOKEN_KEY, *(key for key in keys if key in (w.secrets or ()))]
    found: list[Json] = []
    if keys:
        items = [{"key": key, "path": key} for key in keys]
        found.append({"secret": {"name": names.access_secret(w.name), "items": items}})
    if external is not None and login is not None:
        items = [{"key": login, "path": names.url_key(login)}]
        found.append({"secret": {"name": external.secret_name, "items": items}})
    token = w.job.spec.model.token_secret
    if token is not None and has_hub_token(w, role):
        found.append({"secret": {"name": token.name, "items": [{"key": token.key, "path": names.HUB_TOKEN_KEY}]}})
    return found


def _store_secret(w: JobBlueprint, role: Role) -> str | None:
    """The Secret of the job's object store, in pods that read or write there."""
    return w.job.spec.storage.store_secret if spec_of(role).reads_store else None


def has_hub_token(w: JobBlueprint, role: Role) -> bool:
    """Whether a pod sees the token for the job's private model."""
    return role is Role.PREPARE and w.job.spec.model.token_secret is not None


def _source_mounts(w: JobBlueprint, role: Role) -> list[Json]:
    """Volumes that the job names by `pvc://`. Only prepare sees them whole: it says what is missing there.

    A path that a pod mounts must exist, or the kubelet makes an empty directory of that name; prepare has looked.
    """
    volume_of = _claims(w)
    wanted = sorted(set(_on_claims(_read_in_place(w.resolved, role)))) if reaches_volumes(w, role) else []
    if role is Role.PREPARE:
        wanted = sorted({(claim, PurePosixPath()) for claim, _ in wanted})
    found: list[Json] = []
    for claim, path in wanted:
        if any(claim == other and path != above and path.is_relative_to(above) for other, above in wanted):
            continue  # a mount above shows it
        mount: Json = {"name": volume_of[claim], "mountPath": str(names.claim_dir(claim) / path), "readOnly": True}
        found.append({**mount, "subPath": str(path)} if path.parts else mount)
    return found


def _claims(w: JobBlueprint) -> dict[str, str]:
    """Every claim that the job uses, and the volume's name in pods: one volume a claim, or kubelets wait for ever."""
    found = {run_claim_name(w): "run"}
    named = {claim for claim, _ in _on_claims(_read_in_place(w.resolved, Role.PREPARE))}
    if (cache := w.job.spec.storage.cache_claim_name) is not None:
        named.add(cache)
    patches = w.job.spec.pod_template.by_role().values()
    named |= {volume.pvc for patch in patches for volume in patch.volumes if volume.pvc}
    return found | {claim: f"claim-{index}" for index, claim in enumerate(sorted(named - found.keys()))}


def _on_claims(paths: Iterable[Path | None]) -> list[tuple[str, PurePosixPath]]:
    """Claim and path in it, of those paths that are on a claim."""
    below = [
        PurePosixPath(path).relative_to(names.CLAIMS_DIR)
        for path in paths
        if path and path.is_relative_to(names.CLAIMS_DIR)
    ]
    return [(path.parts[0], PurePosixPath(*path.parts[1:])) for path in below if path.parts]
