"""Rules of what only a cluster has: volumes, ConfigMaps, failure policies, pods."""

import re
from collections import Counter
from collections.abc import Callable, Iterable

from areal.spec.cluster import PodPatch
from areal.spec.job import RLJob
from areal.spec.locality import Locality, hugging_face_paths, locality_of, named_files
from areal.spec.rules import Facts, Rule, rule, rule_of_every_training, warning
from areal.spec.sources import on_volume

_VOLUME = r"^pvc://[a-z0-9]([-a-z0-9.]*[a-z0-9])?(/[A-Za-z0-9_][^/]*)+$"
_STORE = r"^(s3|gs|az)://[^/]+/.+$"
_HUB = r"^hf://[-A-Za-z0-9_.]+/[-A-Za-z0-9_.]+(@[-A-Za-z0-9_./]+)?$"


RESERVED_ENV = (
    "^(AREAL_.*|PET_.*|TORCHELASTIC_.*|RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|GROUP_WORLD_SIZE|"
    "NODE_RANK|ROLE_RANK|ROLE_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)$"
)
"""Variables that the operator, the launcher or torchrun sets."""
OPEN_ENV = "AREAL_LOG_FORMAT"  # The one of ours that a job may set
RESERVED_PATHS = "^/((areal|run|tmp|dev|proc|sys|etc|usr|bin|sbin|lib|lib32|lib64|boot|var|opt/areal)(/.*)?|opt)$"
"""Directories of ours and of the image's system, where a job mounts nothing."""
RESERVED_LABELS = (
    "^((areal[.]dev|apps[.]kubernetes[.]io|statefulset[.]kubernetes[.]io|batch[.]kubernetes[.]io)/.*|"
    "app[.]kubernetes[.]io/(name|managed-by|component)|pod-template-hash)$"
)
"""Labels by which pods are found."""
RESERVED_ANNOTATIONS = (
    "^(areal[.]dev|container[.]apparmor[.]security[.]beta[.]kubernetes[.]io|"
    "container[.]seccomp[.]security[.]alpha[.]kubernetes[.]io|seccomp[.]security[.]alpha[.]kubernetes[.]io)/.*$"
)
"""Annotations that are the operator's, or would loosen a pod's confinement."""


@rule_of_every_training(
    "model.uri is pvc://claim/path, hf://owner/name@revision, or a folder of a bucket such as s3://bucket/path.",
    cel=(
        f"!has(self.spec.model.uri) || self.spec.model.uri.matches('{_VOLUME}') || "
        f"self.spec.model.uri.matches('{_HUB}') || self.spec.model.uri.matches('{_STORE}')"
    ),
)
def model_uri(job: RLJob, facts: Facts) -> str | None:
    uri = job.spec.model.uri
    return (
        None if uri is None or any(re.match(form, uri) for form in (_VOLUME, _HUB, _STORE)) else f"{uri!r} is neither"
    )


@rule_of_every_training(
    "model.path is a directory, not an address.",
    cel="!has(self.spec.model.path) || !self.spec.model.path.contains('://')",
)
def model_path(job: RLJob, facts: Facts) -> str | None:
    path = job.spec.model.path
    return None if path is None or "://" not in path else f"{path!r} is an address"


@rule_of_every_training(
    "The recipe has exactly one of file and configMap.",
    cel="!has(self.spec.recipe) || has(self.spec.recipe.file) != has(self.spec.recipe.configMap)",
)
def recipe_source(job: RLJob, facts: Facts) -> str | None:
    recipe = job.spec.recipe
    if recipe is None or (recipe.file is None) != (recipe.config_map is None):
        return None
    return "neither file nor configMap is given" if recipe.file is None else "both file and configMap are given"


def _volume_rule(id: str, field: str, *, model: bool = False) -> Rule:
    """That one field, when it names a volume, names a place on it; of a model also an address of the hub."""
    short = field.removeprefix("spec.")
    parents = field.split(".")
    given = [f"has(self.{'.'.join(parents[:depth])})" for depth in range(2, len(parents) + 1)]
    absent = " || ".join(f"!{have}" for have in given)
    cel = f"{absent} || !self.{field}.startsWith('pvc://') || self.{field}.matches('{_VOLUME}')"
    if model:
        of_hub = f"!self.{field}.startsWith('hf://') || self.{field}.matches('{_HUB}')"
        cel = f"{absent} || ((!self.{field}.startsWith('pvc://') || self.{field}.matches('{_VOLUME}')) && ({of_hub}))"
    or_hub = ", a model of the hub hf://owner/name@revision" if model else ""

    @rule_of_every_training(
        f"A volume in {short} is written pvc://claim/path{or_hub}.",
        id=id,
        field=field,
        fix=f"Write {short} as pvc://, the claim's name, and a path without dots in front: pvc://data/train.jsonl{or_hub}.",
        cel=cel,
    )
    def broken(job: RLJob, facts: Facts) -> str | None:
        source = {**named_files(job.spec), **hugging_face_paths(job.spec)}.get(field)
        if source is not None and on_volume(source) and not re.match(_VOLUME, source):
            return f"{source!r} names no place on a volume"
        if model and source is not None and locality_of(source) is Locality.HUB and not re.match(_HUB, source):
            return f"{source!r} names no model of the Hugging Face hub"
        return None

    return broken


volume_tokenizer = _volume_rule("volume-tokenizer", "spec.model.tokenizer")
volume_recipe = _volume_rule("volume-recipe", "spec.recipe.file")
volume_train = _volume_rule("volume-train", "spec.dataset.train.jsonl")
volume_evaluation = _volume_rule("volume-evaluation", "spec.dataset.evaluation.jsonl")
volume_train_dataset = _volume_rule("volume-train-dataset", "spec.dataset.train.huggingFace.path")
volume_evaluation_dataset = _volume_rule("volume-evaluation-dataset", "spec.dataset.evaluation.huggingFace.path")

_PLACED = "(!has({0}) || !{0}.startsWith('pvc://') || {0}.matches('" + _VOLUME + "'))"


@rule_of_every_training(
    "A volume in a source of dataset.train.sources is written pvc://claim/path.",
    cel=(
        "!has(self.spec.dataset.train.sources) || self.spec.dataset.train.sources.all(s, "
        f"{_PLACED.format('s.jsonl')} && (!has(s.huggingFace) || {_PLACED.format('s.huggingFace.path')}))"
    ),
)
def volume_sources(job: RLJob, facts: Facts) -> str | None:
    files = {**named_files(job.spec), **hugging_face_paths(job.spec)}
    wrong = ((field, source) for field, source in files.items() if ".sources." in field and on_volume(source))
    odd = next(((field, source) for field, source in wrong if not re.match(_VOLUME, source)), None)
    return None if odd is None else f"{odd[1]!r} of {odd[0]} names no place on a volume"


volume_hooks = _volume_rule("volume-hooks", "spec.trainer.hooks")
volume_teacher = _volume_rule("volume-teacher", "spec.training.teacher.path", model=True)
volume_policy_teacher = _volume_rule("volume-policy-teacher", "spec.algorithm.teacher.path", model=True)
volume_reward_model = _volume_rule("volume-reward-model", "spec.reward.model.path", model=True)


@rule(
    "replay.external is given exactly when replay.backend is External.",
    cel="(self.spec.replay.backend == 'External') == has(self.spec.replay.external)",
)
def external_redis(job: RLJob, facts: Facts) -> str | None:
    replay = job.spec.replay
    if (replay.backend == "External") == (replay.external is not None):
        return None
    if replay.external is None:
        return "backend External, but replay.external doesn't say where it is"
    return f"replay.external is given, but backend is {replay.backend}"


@rule_of_every_training(
    "A claim that exists has its own size, storage class and access mode, and stays.",
    cel=(
        "!has(self.spec.storage) || !has(self.spec.storage.claimName) || !(has(self.spec.storage.size) || "
        "has(self.spec.storage.storageClassName) || has(self.spec.storage.accessMode) || has(self.spec.storage.retain))"
    ),
)
def storage_claim(job: RLJob, facts: Facts) -> str | None:
    storage = job.spec.storage
    chosen = {
        "size": storage.size,
        "storage_class_name": storage.storage_class_name,
        "access_mode": storage.access_mode,
        "retain": storage.retain if "retain" in storage.model_fields_set else None,
    }
    given = [name for name, value in chosen.items() if value is not None]
    if storage.claim_name is None or not given:
        return None
    return f"claimName {storage.claim_name!r} is there already, so {', '.join(sorted(given))} can't be chosen"


@warning("A volume that one node mounts holds the pods that mount it to that node.")
def one_node(job: RLJob, facts: Facts) -> str | None:
    mode, fetch = job.spec.storage.access_mode, job.spec.servers_fetch
    trainers = job.spec.trainer.replicas
    if mode in (None, "ReadWriteMany") or (fetch and trainers == 1):
        return None
    if trainers > 1:
        return f"{mode}: the {trainers} trainer pods need room on one node, beside the controller and the workers"
    return f"{mode}: servers, trainer, controller and workers need room on one node"


_ELASTIC, _SURGE = "has(self.spec.generation.elastic)", "self.spec.podTemplate['surge']"


@rule(
    "An elastic fleet has replicas between minReplicas and maxReplicas, and a trainer that it may be ahead of.",
    cel=(
        f"!{_ELASTIC} || (self.spec.generation.elastic.minReplicas <= self.spec.generation.replicas && "
        "self.spec.generation.replicas <= self.spec.generation.elastic.maxReplicas && "
        "self.spec.algorithm.maxStaleness > 0 && self.spec.placement != 'shared')"
    ),
)
def elastic_fleet(job: RLJob, facts: Facts) -> str | None:
    limits, servers = job.spec.generation.elastic, job.spec.generation.replicas
    if limits is None:
        return None
    if not limits.min_replicas <= servers <= limits.max_replicas:
        return f"{servers} servers aren't between {limits.min_replicas} and {limits.max_replicas}"
    if job.spec.shared_cards or not job.spec.algorithm.max_staleness:
        return "servers and trainer take turns: each waits for the other whatever their number"
    return None


@rule(
    "Surge servers are an elastic fleet's, and its own servers' equals: podTemplate.surge gives no other resources.",
    cel=(
        "!has(self.spec.podTemplate) || !('surge' in self.spec.podTemplate) || "
        f"({_ELASTIC} && (!has({_SURGE}.resources) || "
        f"((!has({_SURGE}.resources.requests) || {_SURGE}.resources.requests.size() == 0) && "
        f"(!has({_SURGE}.resources.limits) || {_SURGE}.resources.limits.size() == 0))))"
    ),
)
def surge_pool(job: RLJob, facts: Facts) -> str | None:
    surge = job.spec.pod_template.surge
    if surge is None:
        return None
    if job.spec.generation.elastic is None:
        return "podTemplate.surge without generation.elastic"
    given = surge.resources.requests or surge.resources.limits
    return "podTemplate.surge.resources are given" if given else None


@rule(
    "Servers that fetch mount no volume: they keep no journal of tokens there, and share no devices with the trainer.",
    cel=(
        "self.spec.weightSync.servers != 'Fetch' || "
        "(!self.spec.recording.tokenAudit && self.spec.placement != 'shared')"
    ),
)
def fetching_servers(job: RLJob, facts: Facts) -> str | None:
    audit, shared = job.spec.recording.token_audit, job.spec.shared_cards
    if not job.spec.servers_fetch or not (audit or shared):
        return None
    return f"weightSync.servers Fetch with {'recording.tokenAudit' if audit else 'placement: shared'}"


@rule_of_every_training(
    "Every rule of failurePolicy has a name of its own.",
    cel=(
        "!has(self.spec.failurePolicy.rules) || "
        "self.spec.failurePolicy.rules.all(r, self.spec.failurePolicy.rules.exists_one(s, s.name == r.name))"
    ),
)
def failure_rule_names(job: RLJob, facts: Facts) -> str | None:
    names = Counter(rule.name for rule in job.spec.failure_policy.rules)
    name, count = next(iter(names.most_common(1)), ("", 0))
    return f"{name} is there {count} times" if count > 1 else None


@rule_of_every_training(
    "podTemplate sets no variable that the operator or torchrun sets (AREAL_…, RANK …).",
    cel=f"!has(self.env) || self.env.all(e, e.name == '{OPEN_ENV}' || !e.name.matches('{RESERVED_ENV}'))",
    each=True,
)
def environment(job: RLJob, facts: Facts) -> str | None:
    def wrong(patch: PodPatch) -> str | None:
        names = [variable.name for variable in patch.env]
        taken = [name for name in names if name != OPEN_ENV and re.match(RESERVED_ENV, name)]
        return f"{taken[0]} is not for jobs to set" if taken else None

    return _in_pods(job, wrong)


@rule_of_every_training(
    "podTemplate's labels are none by which pods are found (areal.dev/…, app.kubernetes.io/name …).",
    cel=f"!has(self.labels) || self.labels.all(l, !l.matches('{RESERVED_LABELS}'))",
    each=True,
)
def reserved_labels(job: RLJob, facts: Facts) -> str | None:
    return _in_pods(job, lambda patch: _reserved(patch.labels, RESERVED_LABELS))


@rule_of_every_training(
    "podTemplate's annotations are not the operator's and loosen no confinement.",
    cel=f"!has(self.annotations) || self.annotations.all(l, !l.matches('{RESERVED_ANNOTATIONS}'))",
    each=True,
)
def reserved_annotations(job: RLJob, facts: Facts) -> str | None:
    return _in_pods(job, lambda patch: _reserved(patch.annotations, RESERVED_ANNOTATIONS))


@rule_of_every_training(
    "A toleration is one that Kubernetes knows: no value with Exists, a key with Equal, seconds with NoExecute only.",
    cel=(
        "!has(self.tolerations) || self.tolerations.all(t, (t.operator == 'Equal' ? has(t.key) : !has(t.value)) && "
        "(!has(t.tolerationSeconds) || (has(t.effect) && t.effect == 'NoExecute')))"
    ),
    each=True,
)
def tolerations(job: RLJob, facts: Facts) -> str | None:
    def wrong(patch: PodPatch) -> str | None:
        for toleration in patch.tolerations:
            if toleration.operator == "Exists" and toleration.value is not None:
                return f"operator Exists takes no value, {toleration.value!r} is given"
            if toleration.operator == "Equal" and toleration.key is None:
                return "operator Equal needs a key"
            if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
                return "tolerationSeconds is for the effect NoExecute"
        return None

    return _in_pods(job, wrong)


@rule_of_every_training(
    "A variable has a value or one of valueFrom.secretKeyRef and valueFrom.configMapKeyRef.",
    cel=(
        "!has(self.env) || self.env.all(e, !has(e.valueFrom) || "
        "(e.value == '' && has(e.valueFrom.secretKeyRef) != has(e.valueFrom.configMapKeyRef)))"
    ),
    each=True,
)
def environment_sources(job: RLJob, facts: Facts) -> str | None:
    def wrong(patch: PodPatch) -> str | None:
        for variable in patch.env:
            if (of := variable.value_from) is None:
                continue
            if variable.value or (of.secret_key_ref is None) == (of.config_map_key_ref is None):
                return f"{variable.name} has valueFrom, and not exactly one source in it and no value beside it"
        return None

    return _in_pods(job, wrong)


@rule_of_every_training(
    "A volume is one of pvc, configMap and secret, the last two read-only, and mounted where nothing of ours or of the "
    "system is (/areal, /run, /tmp, /dev, /etc, /usr, /var …).",
    cel=(
        "!has(self.volumes) || self.volumes.all(v, [has(v.pvc), has(v.configMap), has(v.secret)].exists_one(x, x) && "
        f"(v.readOnly || has(v.pvc)) && !v.mountPath.matches('{RESERVED_PATHS}'))"
    ),
    each=True,
)
def volumes(job: RLJob, facts: Facts) -> str | None:
    def wrong(patch: PodPatch) -> str | None:
        for volume in patch.volumes:
            if len(named := volume.sources()) != 1:
                return f"the volume at {volume.mount_path} names {' and '.join(named) or 'nothing'}"
            if not volume.read_only and volume.pvc is None:
                return f"the {next(iter(named))} at {volume.mount_path} can't be written"
            if re.match(RESERVED_PATHS, volume.mount_path):
                return f"{volume.mount_path} is not for jobs to mount"
        return None

    return _in_pods(job, wrong)


def _in_pods(job: RLJob, wrong: Callable[[PodPatch], str | None]) -> str | None:
    for name, patch in job.spec.pod_template.by_role().items():
        if message := wrong(patch):
            return f"podTemplate.{name}: {message}"
    return None


def _reserved(names: Iterable[str], pattern: str) -> str | None:
    taken = next((name for name in names if re.match(pattern, name)), None)
    return f"{taken} is the operator's" if taken else None
