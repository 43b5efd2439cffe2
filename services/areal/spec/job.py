"""The job file as a whole."""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import PrivateAttr, model_validator

from areal.errors import BugError
from areal.spec.algorithm import Algorithm, Research
from areal.spec.block import Mutability, SpecBlock, block_for, fields_of, fixed, knob, resting, without_nulls
from areal.spec.cluster import MANAGER, FailurePolicy, PodTemplate, RunPolicy, RuntimeRef, Scheduling, Storage
from areal.spec.gpu_defaults import on_gpus
from areal.spec.rollout import RolloutBlock
from areal.spec.serving import GenerationBlock, Reward
from areal.spec.sources import Dataset, EvaluationBlock, ModelBlock, RecipeBlock
from areal.spec.supervised import (
    USUAL_RATES,
    DistillationTraining,
    DpoTraining,
    RewardModelTraining,
    SftTraining,
    Supervised,
    Teacher,
    Training,
)
from areal.spec.text import PathText
from areal.spec.training import CheckpointBlock, Export, Optimizer, RecordingBlock, Replay, Trainer, WeightSync

# ---- The `observability` block


class TraceExport(SpecBlock):
    """Distributed traces (OpenTelemetry) of a part of the prompt groups. Roles need the extra `traces`."""

    endpoint: PathText | None = resting(
        None,
        what="The collector's OTLP/HTTP address, such as http://collector.observability:4318; the environment's "
        "OTEL_EXPORTER_OTLP_ENDPOINT unless given.",
        pattern="^https?://[^/?#]+",
    )
    sample_rate: float = resting(0.01, what="Which part of the groups is traced, the same in every role.", ge=0, le=1)


class Observability(SpecBlock):
    """What others may see of the run while it goes on."""

    traces: TraceExport | None = resting(None, what="Spans of groups and versions, sent by OTLP; none unless given.")
    view: bool = resting(
        False, what="On a cluster: a pod that shows the run in a browser, to whoever may read the job there."
    )


# ---- The job file as a whole


class Metadata(SpecBlock):
    """The job's name, and what Kubernetes adds."""

    name: str = knob(what="The run's name: letters, digits and '-', at most 40 characters.", max_length=253)
    namespace: str | None = resting(None, what="Kubernetes namespace.", max_length=63)
    labels: dict[str, str] = resting(dict, what="Kubernetes labels; an API server checks them.")
    annotations: dict[str, str] = resting(dict, what="Kubernetes annotations; an API server checks them.")


class JobSpec(SpecBlock):
    """What to train, on what, and how."""

    seed: int = knob(0, what="Of the data order and of sampling.", ge=0, lt=2**63)
    model: ModelBlock = knob(what="The start model.")
    recipe: RecipeBlock | None = knob(None, what="The user's Python file.")
    dataset: Dataset = knob(what="Rows to train on and to measure.")
    rollout: RolloutBlock = knob(RolloutBlock, what="How answers are made.")
    algorithm_block: Algorithm | None = knob(None, what="RL: what is optimised.", alias="algorithm")
    supervised: Supervised | None = knob(None, what="Instead of RL: a training on fixed rows.", alias="training")
    optimizer: Optimizer = knob(Optimizer, what="How weights follow their gradient.")
    reward: Reward = knob(Reward, what="Who scores.")
    generation: GenerationBlock = knob(GenerationBlock, what="Who makes tokens.")
    trainer: Trainer = knob(Trainer, what="Who trains.")
    placement: Literal["separate", "shared"] = resting(
        "separate",
        what="Whether servers and trainer have devices of their own, or the same ones by turns (shared): servers give "
        "their memory back while the trainer works, and it does while they do.",
    )
    evaluation: EvaluationBlock = knob(EvaluationBlock, what="Measuring on held-out rows.", server_default=False)
    replay: Replay = knob(Replay, what="The ledger's store.")
    weight_sync: WeightSync = knob(WeightSync, what="How weights reach servers.")
    checkpoint: CheckpointBlock = knob(CheckpointBlock, what="What a restart continues from.")
    export: Export | None = resting(None, what="Models for other programs while the run goes on.")
    recording: RecordingBlock = knob(RecordingBlock, what="What is kept of samples and tokens, for people.")
    research: Research = knob(Research, what="What is refused unless a study is made of it.")
    observability: Observability = knob(Observability, what="What others may see of the run while it goes on.")

    runtime_ref: RuntimeRef | None = fixed(
        None, what="Cluster only: the platform's runtime; the operator's default unless given."
    )
    managed_by: str = fixed(
        MANAGER,
        what="Cluster only: who runs the job; the operator leaves alone what is another's.",
        min_length=1,
        max_length=253,
    )
    suspend: bool = knob(
        False, what="Cluster only: save a checkpoint, stop the pods, keep the state.", change=Mutability.LIVE
    )
    storage: Storage = resting(Storage, what="Cluster only: the run's volume.")
    scheduling: Scheduling = resting(Scheduling, what="Cluster only: where pods go.")
    run_policy: RunPolicy = resting(RunPolicy, what="Cluster only: deadlines, cleaning up.")
    failure_policy: FailurePolicy = resting(FailurePolicy, what="Cluster only: what restarts what.")
    pod_template: PodTemplate = resting(
        PodTemplate,
        what="Cluster only: patches of pods by role: trainer, generation, reward, rewardCustom, controller, worker, "
        "gateway, redis, tools.",
    )

    @model_validator(mode="before")
    @classmethod
    def _engine_follows_gpus(cls, values: Any) -> Any:
        """Defaults of the engine where there are GPUs: as many as it is split over, and the trainer's precision."""
        return on_gpus(values) if isinstance(values, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _rate_follows_training(cls, values: Any) -> Any:
        """The learning rate of a training on fixed rows, unless one is given."""
        training = values.get("training") if isinstance(values, dict) else None
        usual = USUAL_RATES.get(str(training.get("name"))) if isinstance(training, dict) else None
        optimizer = values.get("optimizer", {}) if usual is not None else None
        if not isinstance(optimizer, dict) or optimizer.get("learningRate", optimizer.get("learning_rate")) is not None:
            return values
        return {**values, "optimizer": {**optimizer, "learningRate": usual}}

    @property
    def algorithm(self) -> Algorithm:
        """What an RL job optimises. Other trainings have none: whoever asks must know that it is RL."""
        if self.algorithm_block is None:
            raise BugError(f"a job of training {self.training} was asked for its algorithm")
        return self.algorithm_block

    @property
    def training(self) -> Training:
        """What kind of run it is: RL unless there is a training on fixed rows."""
        return "RL" if self.supervised is None else self.supervised.name

    @property
    def is_whole(self) -> bool:
        """Whether it says what to do; nothing can be planned without."""
        return (self.algorithm_block is None) != (self.supervised is None)

    @property
    def replays_routes(self) -> bool:
        """Whether samples bring the experts of their tokens, where the model has some."""
        return self.is_rl and self.trainer.routing_replay

    @property
    def sft(self) -> SftTraining | None:
        """The training, where it is supervised fine-tuning."""
        return self.supervised if isinstance(self.supervised, SftTraining) else None

    @property
    def dpo(self) -> DpoTraining | None:
        """The training, where it is DPO."""
        return self.supervised if isinstance(self.supervised, DpoTraining) else None

    @property
    def reward_model(self) -> RewardModelTraining | None:
        """The training, where it is of a reward model."""
        return self.supervised if isinstance(self.supervised, RewardModelTraining) else None

    @property
    def distillation(self) -> DistillationTraining | None:
        """The training, where it is distillation on fixed rows."""
        return self.supervised if isinstance(self.supervised, DistillationTraining) else None

    @property
    def teacher(self) -> Teacher | None:
        """The frozen model that is learned from, on fixed rows or on own samples."""
        if self.is_rl:
            return self.algorithm_block.teacher if self.algorithm_block is not None else None
        return self.distillation.teacher if self.distillation is not None else None

    @property
    def teacher_field(self) -> str:
        """Where the job names its teacher's directory."""
        return f"spec.{'algorithm' if self.is_rl else 'training'}.teacher.path"

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that is trained."""
        return self.rollout.max_sample_tokens if self.supervised is None else self.supervised.max_tokens

    @property
    def has_pairs(self) -> bool:
        """Whether a row of its dataset is a pair of answers, the chosen and the rejected one."""
        return self.training in ("DPO", "RewardModel")

    @property
    def weights_by_group(self) -> bool:
        """Whether the trainer may send versions to servers by a process group."""
        if not self.is_rl or self.trainer.lora is not None or self.shared_cards:
            return False
        return self.weight_sync.mode == "Group" or (self.weight_sync.mode == "Auto" and self.trainer.world_size == 1)

    @property
    def weights_by_memory(self) -> bool:
        """Whether the trainer hands versions to servers in shared memory, and the volume gets some of them."""
        return self.shared_cards and self.weight_sync.mode == "Auto"

    @property
    def servers_fetch(self) -> bool:
        """Whether servers read the start model and versions over the network, not from the run's volume."""
        return self.is_rl and self.weight_sync.servers == "Fetch"

    def core_servers(self, servers: int) -> int:
        """Servers that are not of the surge pool, of so many in all."""
        elastic = self.generation.elastic
        return servers if elastic is None or self.pod_template.surge is None else min(servers, elastic.min_replicas)

    @property
    def groups_patience_s(self) -> float:
        """Seconds that a trainer waits for the next groups, at most: no group takes twice its deadline."""
        return 2 * self.rollout.group_deadline_seconds + 600.0

    @property
    def shared_cards(self) -> bool:
        """Whether servers and trainer have the same devices, by turns."""
        return self.is_rl and self.placement == "shared"

    @property
    def trainer_pod_gpus(self) -> int:
        """GPUs of a trainer's pod: its own or, where servers have them by turns, theirs if those are more."""
        serving = getattr(self.generation.engine, "gpus", 0) * self.generation.replicas if self.shared_cards else 0
        return max(self.trainer.gpus, serving)

    def publishes_deltas(self, *, in_pods: bool) -> bool:
        """Whether a version may be published as changes from the one before.

        Of a float32 number some low bit always changes, so nothing would be saved; an adapter is small; and on one
        machine a server reads the version where it lies: no network is saved, and copies would fill the disk.
        """
        bfloat16 = self.trainer.precision == "bfloat16" and not self.weights_by_memory
        return in_pods and bfloat16 and self.trainer.lora is None and self.weight_sync.full_every > 1

    @property
    def is_rl(self) -> bool:
        """Whether answers are generated and scored while the run goes on."""
        return self.supervised is None


class RLJob(SpecBlock):
    """One run. The same file runs on a laptop and on a cluster."""

    api_version: Literal["areal.dev/v1alpha1"] = knob(what="Always areal.dev/v1alpha1.")
    kind: Literal["RLJob"] = knob(what="Always RLJob.")
    metadata: Metadata = knob(what="The job's name.")
    spec: JobSpec = knob(what="The job.")

    _places: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _given: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    def where(self, field: str) -> str:
        """Where a dotted field was given: `file:line` or the override, of the field or of the closest block above it.

        Empty for a job that comes from no file.
        """
        while field and field not in self._places:
            field = field.rpartition(".")[0]
        return self._places.get(field, "")

    def placed(self, places: Mapping[str, str]) -> "RLJob":
        """The same job, which knows where its fields were given."""
        job = self.model_copy()
        job._places = places
        return job

    def written(self, values: Mapping[str, Any]) -> "RLJob":
        """The same job, which knows how its author wrote it."""
        job = self.model_copy()
        job._given = values
        return job

    @property
    def as_written(self) -> dict[str, Any]:
        """The values as the author wrote them (2Gi stays 2Gi), nulls that say nothing left out."""
        return without_nulls(type(self), copy.deepcopy(dict(self._given or self.model_dump(exclude_unset=True))))

    def __eq__(self, other: object) -> bool:
        """Jobs are equal when their fields are, wherever they were given."""
        return self.digest() == other.digest() if isinstance(other, RLJob) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())

    def digest(self) -> str:
        """sha256 over every field, defaults included."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def identity(self) -> dict[str, Any]:
        """The fields that say what this run is, by dotted path: a resumed run must have the same."""
        found: dict[str, Any] = {}
        _identity(self, "", found)
        return found


def _identity(block: SpecBlock, prefix: str, found: dict[str, Any]) -> None:
    dumped = block.model_dump(mode="json")
    by_name = {field.alias or name: getattr(block, name) for name, field in type(block).model_fields.items()}
    for alias, field in fields_of(type(block)).items():
        value = by_name[alias]
        if isinstance(value, SpecBlock):
            _identity(value, f"{prefix}{alias}.", found)
        elif field.json_schema_extra["change"] == Mutability.NEVER:
            found[f"{prefix}{alias}"] = None if block_for(field.annotation, value) else dumped[alias]
