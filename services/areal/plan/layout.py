"""Layout of a run directory: the one place that knows its file names."""

from dataclasses import dataclass
from pathlib import Path


class _PathBelow:
    """Descriptor: a path below the layout's root."""

    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, layout: "RunLayout", owner: type) -> Path:
        return layout.root.joinpath(*self._parts)


@dataclass(frozen=True)
class RunLayout:
    """Paths below a run directory. Nothing here touches the disk."""

    root: Path

    resolved = _PathBelow("resolved.json")  # the resolved job, written last: a directory without it was never a run
    access = _PathBelow("access")  # bearer tokens of gRPC calls, one a caller, mode 0600, and digests of them
    token = _PathBelow("token")  # of a run of an older version: the one token of all calls
    redis = _PathBelow("redis")  # Redis' configuration, access rules, passwords and append-only file
    start_model = _PathBelow("start-model")  # on a cluster: the model of hf:// or s3://, as it was downloaded
    teacher = _PathBelow("teacher")  # on a cluster: the teacher of hf://, as it was downloaded
    reward_model = _PathBelow("reward-model")  # on a cluster: the reward model of hf://, as it was downloaded
    fetched = _PathBelow("fetched")  # on a cluster: rows of an object store, until the snapshots are made
    recipe = _PathBelow("recipe")  # holds a copy of the recipe, so that editing the original changes no running job
    dataset = _PathBelow("dataset")  # prepared snapshots: train/ and evaluation/
    logs = _PathBelow("logs")  # one file a role
    weights = _PathBelow("weights")  # published versions
    checkpoints = _PathBelow("checkpoints")
    cards = _PathBelow("cards")  # locks of devices that trainer and servers share: who has them now
    fences = _PathBelow("fences")  # one file a fence, made by exclusive create
    journal = _PathBelow("journal", "controller.jsonl")  # the controller's tombstones and batches
    episode_ends = _PathBelow("journal")  # where the controller keeps how many episodes ended in which way
    evidence = _PathBelow("evidence")  # evidence of the trainer: what its gradients were made of
    metrics = _PathBelow("metrics.jsonl")  # one line a step
    evaluations = _PathBelow("evaluations.jsonl")  # one line an evaluated version
    trajectories = _PathBelow("trajectories")  # segments that the workers record: samples, evaluated rows, failures
    recording = _PathBelow("recording")  # segments that the trainer records: steps, and what it computed of each token
    tokens = _PathBelow("tokens")  # sampled and trained, token by token, where `recording.tokenAudit` asks
    tensorboard = _PathBelow("tensorboard")
    tracking = _PathBelow("tracking")  # progress of `areal export --to` by tracker, and files of W&B's offline mode
    model = _PathBelow("model")  # the final Hugging Face model
    host_plan = _PathBelow(
        "hosts", "plan.json"
    )  # which row is on which of several hosts; its directory is the rows' own
    exports = _PathBelow("exports")  # Hugging Face models of some steps, where `export` asks for them
    summary = _PathBelow("summary.json")
    report = _PathBelow("report.html")
    live = _PathBelow("live.json")  # what every role last said of itself: `areal status`, `why` and `view` read it
    redis_conf = _PathBelow("redis", "redis.conf")
    redis_acl = _PathBelow("redis", "users.acl")

    def redis_password(self, user: str) -> Path:
        """The password file of a Redis login, mode 0600."""
        return self.redis / f"{user}.password"
