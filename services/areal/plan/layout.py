"""Layout of a run directory: the one place that knows its file names."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunLayout:
    """Paths below a run directory. Nothing here touches the disk."""

    root: Path

    @property
    def resolved(self) -> Path:
        """The resolved job, written last: a directory without it was never a run."""
        return self.root / "resolved.json"

    @property
    def token(self) -> Path:
        """The bearer token of every gRPC and HTTP control call, mode 0600."""
        return self.root / "token"

    @property
    def redis(self) -> Path:
        """Redis' configuration, access rules, passwords and append-only file."""
        return self.root / "redis"

    @property
    def start_model(self) -> Path:
        """On a cluster: the model of hf://, as it was downloaded."""
        return self.root / "start-model"

    @property
    def teacher(self) -> Path:
        """On a cluster: the teacher of hf://, as it was downloaded."""
        return self.root / "teacher"

    @property
    def reward_model(self) -> Path:
        """On a cluster: the reward model of hf://, as it was downloaded."""
        return self.root / "reward-model"

    @property
    def recipe(self) -> Path:
        """Holds a copy of the recipe, so that editing the original changes no running job."""
        return self.root / "recipe"

    @property
    def dataset(self) -> Path:
        """Prepared snapshots: train/ and evaluation/."""
        return self.root / "dataset"

    @property
    def logs(self) -> Path:
        """One file a role."""
        return self.root / "logs"

    @property
    def weights(self) -> Path:
        """Published versions."""
        return self.root / "weights"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def cards(self) -> Path:
        """Locks of devices that trainer and servers share: who has them now."""
        return self.root / "cards"

    @property
    def fences(self) -> Path:
        """One file a fence, made by exclusive create."""
        return self.root / "fences"

    @property
    def journal(self) -> Path:
        """The controller's tombstones and batches."""
        return self.root / "journal" / "controller.jsonl"

    @property
    def episode_ends(self) -> Path:
        """The directory in which the controller keeps how many episodes ended in which way."""
        return self.journal.parent

    @property
    def evidence(self) -> Path:
        """Evidence of the trainer: what its gradients were made of."""
        return self.root / "evidence"

    @property
    def metrics(self) -> Path:
        """One line a step."""
        return self.root / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One line an evaluated version."""
        return self.root / "evaluations.jsonl"

    @property
    def trajectories(self) -> Path:
        """Segments that the workers record: samples, evaluated rows, failures."""
        return self.root / "trajectories"

    @property
    def recording(self) -> Path:
        """Segments that the trainer records: steps, and what it computed of each token."""
        return self.root / "recording"

    @property
    def tokens(self) -> Path:
        """What servers sampled and what the trainer trained, token by token, where `recording.tokenAudit` asks."""
        return self.root / "tokens"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def tracking(self) -> Path:
        """Progress of `areal export --to` with each tracker, and files of W&B's offline mode."""
        return self.root / "tracking"

    @property
    def model(self) -> Path:
        """The final Hugging Face model."""
        return self.root / "model"

    @property
    def host_plan(self) -> Path:
        """Where a run has several hosts: which row is on which; its directory is the rows' own."""
        return self.root / "hosts" / "plan.json"

    @property
    def exports(self) -> Path:
        """Hugging Face models of some steps, where `export` asks for them."""
        return self.root / "exports"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def live(self) -> Path:
        """What every role last said of itself, for `areal status`, `areal why` and `areal view`."""
        return self.root / "live.json"

    def redis_password(self, user: str) -> Path:
        """The password file of a Redis login, mode 0600."""
        return self.redis / f"{user}.password"

    @property
    def redis_conf(self) -> Path:
        return self.redis / "redis.conf"

    @property
    def redis_acl(self) -> Path:
        return self.redis / "users.acl"
