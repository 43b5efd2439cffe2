"""The `trainer`, `optimizer`, `replay`, `weightSync` and `checkpoint` blocks."""

from typing import Any, Literal, get_args

from pydantic import model_validator

from areal.spec.block import SpecBlock, knob, resting
from areal.spec.quantity import Bytes
from areal.spec.text import Name, PathText, Word

Attention = Literal["dense", "varlen", "flex"]
Adapted = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_ALL_ADAPTED: tuple[Adapted, ...] = get_args(Adapted)
Recompute = Literal["none", "selective", "full", "offload"]
Compile = Literal["none", "blocks"]
OptimizerState = Literal["float32", "bfloat16", "cpu"]


class Mesh(SpecBlock):
    """How the trainer's processes divide the work."""

    replicate: int = resting(
        1, what="Copies of the weights and of the optimizer, each sharded over processes / replicate (HSDP).",
        ge=1, le=1 << 16,
    )  # fmt: skip
    tensor: int = resting(
        1, what="Processes of a node that split each layer (tensor parallelism, by the model's own plan) and share "
        "their micro-batches.",
        ge=1, le=64,
    )  # fmt: skip
    context: int = resting(
        1, what="Processes that split the tokens of each row (context parallelism: around attention they exchange "
        "tokens for heads) and share their micro-batches.",
        ge=1, le=64,
    )  # fmt: skip

    @property
    def together(self) -> int:
        """Processes with the same micro-batches."""
        return self.tensor * self.context


class Lora(SpecBlock):
    """Low-rank adapters, trained instead of the model's own weights, in peft's layout."""

    rank: int = knob(32, what="Rank of the two matrices of an adapter (peft's r).", ge=1, le=1024)
    alpha: float = knob(64.0, what="An adapter's output is scaled by alpha / rank (peft's lora_alpha).", gt=0, le=10**6)
    targets: list[Adapted] = knob(
        lambda: list(_ALL_ADAPTED),
        what="Which linear layers of each block have an adapter (peft's target_modules).",
        min_length=1,
        max_length=len(_ALL_ADAPTED),
    )


class Trainer(SpecBlock):
    """The trainer: torchrun and FSDP2, one process a GPU (or a CPU core)."""

    replicas: int = resting(1, what="Nodes.", ge=1, le=1024)
    gpus: int = resting(0, what="GPUs of each node, one process each; 0 trains on CPUs.", ge=0, le=64)
    gpu_memory: Bytes | None = resting(
        None, what="Memory of one of these GPUs, as it shows itself: `areal check` refuses what can't fit.",
        unit="bytes", ge=1 << 30, le=1 << 50,
    )  # fmt: skip
    proc_per_node: int = resting(
        1, what="Processes a node; as many as gpus, where there are any.", server_default=False, ge=1, le=64
    )
    micro_batch_tokens: int = resting(
        8192, what="Tokens of one forward and backward pass on a process; bounds memory.", unit="tokens",
        ge=1, le=1 << 24,
    )  # fmt: skip
    pack_length: int | None = resting(
        None, what="Samples are packed into rows of at least this many tokens; unless given microBatchTokens where "
        "attention is by segments, else chosen by lengths.",
        unit="tokens", ge=1, le=1 << 24,
    )  # fmt: skip
    precision: Literal["float32", "bfloat16"] = knob(
        "float32", what="Of the forward and backward pass; bfloat16 on GPUs unless given.", server_default=False
    )
    attention: Literal["auto", "dense", "varlen", "flex"] = resting(
        "auto",
        what="How a packed row is attended to: by a mask (dense), by segments (varlen; auto on GPUs in bfloat16) or by "
        "blocks (flex, on GPUs; doesn't copy the keys of a shared prompt).",
    )
    recompute: Recompute = resting(
        "none", what="What a backward pass computes again, for memory; offload is full, layers' inputs in host memory."
    )
    compile: Literal["auto", "none", "blocks"] = resting(
        "auto",
        what="Compile layers with torch.compile (blocks): their small operations become few kernels, after a minute's "
        "work at the start; auto does on GPUs where it can.",
    )
    fp32_head: bool = resting(
        False,
        what="Logits in float32, of trainer and servers: in bfloat16 they are rounded before the softmax otherwise.",
    )
    routing_replay: bool = resting(
        True, what="Of a mixture of experts: each token is trained with the experts that sampled it."
    )
    router_aux_coefficient: float = resting(0.0, what="Weight of the load-balancing loss of experts.", ge=0, le=1)
    router_z_coefficient: float = resting(0.0, what="Weight of the z-loss of experts' routers.", ge=0, le=1)
    optimizer_state: OptimizerState = resting(
        "float32",
        what="AdamW's moments: in float32, in bfloat16 (stochastically rounded), or with its update in host memory "
        "(cpu). Weights it updates are float32 in each.",
    )
    standby: bool = resting(
        False,
        what="Keep a second process that has done its imports, which takes over when the trainer dies; of one process "
        "a node.",
    )
    lora: Lora | None = knob(
        None, what="Train adapters and leave the model's weights as they are; all weights unless given."
    )
    mesh: Mesh = knob(Mesh, what="How processes divide the work.")
    hooks: PathText | None = knob(
        None, what="A Python file, imported by the trainer only, that may import torch; or pvc://claim/path."
    )

    @model_validator(mode="before")
    @classmethod
    def _follows_gpus(cls, values: Any) -> Any:
        """Defaults on GPUs: a process each, and bfloat16."""
        gpus = values.get("gpus") if isinstance(values, dict) else None
        if not isinstance(gpus, int) or isinstance(gpus, bool) or gpus < 1:
            return values
        given = dict(values)
        if "proc_per_node" not in given:
            given.setdefault("procPerNode", gpus)
        given.setdefault("precision", "bfloat16")
        return given

    @property
    def world_size(self) -> int:
        """All processes."""
        return self.replicas * self.proc_per_node

    @property
    def data_ranks(self) -> int:
        """Groups of processes with micro-batches of their own."""
        return max(1, self.world_size // self.mesh.together)

    @property
    def shards(self) -> int:
        """Processes that one copy of the model is sharded over."""
        return max(1, self.world_size // self.mesh.replicate)

    @property
    def uncompilable(self) -> list[str]:
        """Fields that don't go with compiled layers."""
        backend = self.attention_backend
        breaks = {
            "trainer.lora": self.lora is not None,
            "trainer.mesh.tensor": self.mesh.tensor > 1,
            "trainer.mesh.context": self.mesh.context > 1,
            "trainer.recompute: offload": self.recompute == "offload",
            f"attention {backend}": backend == "flex" or (backend == "varlen" and not self.gpus),
        }
        return [name for name, there in breaks.items() if there]

    @property
    def compiled(self) -> Compile:
        """What `auto` means: on CPUs compiled layers bring nothing."""
        if self.compile != "auto":
            return self.compile
        return "blocks" if self.gpus and not self.uncompilable else "none"

    @property
    def row_tokens(self) -> int | None:
        """Least tokens of a packed row; by segments a row costs no more for its length, so it is the whole budget."""
        by_segments = self.attention_backend == "varlen"
        return self.pack_length or (self.micro_batch_tokens if by_segments else None)

    @property
    def attention_backend(self) -> Attention:
        """What `auto` means: flash kernels are for GPUs and bfloat16, and everywhere else a mask is exact."""
        if self.attention != "auto":
            return self.attention
        return "varlen" if self.gpus and self.precision == "bfloat16" else "dense"


class Optimizer(SpecBlock):
    """AdamW and its learning rate: warm-up from 0, then a fall to a fraction of the peak."""

    learning_rate: float = knob(
        1e-6,
        what="Peak learning rate; unless given 2e-5 of SFT and Distillation, 1e-5 of RewardModel, 5e-7 of DPO.",
        server_default=False,
        gt=0,
    )
    warmup_steps: int = knob(5, what="Steps of linear warm-up from 0.", unit="steps", ge=0, le=10**9)
    lr_schedule: Literal["linear", "constant", "cosine"] = knob(
        "linear", what="How the learning rate falls after warm-up."
    )
    min_lr_ratio: float = knob(0.1, what="The schedule's end, as a fraction of the peak.", ge=0, le=1)
    betas: tuple[float, float] = knob((0.9, 0.99), what="AdamW's β₁ and β₂.", strict=False)
    weight_decay: float = knob(0.0, what="AdamW's weight decay.", ge=0)
    eps: float = knob(1e-8, what="AdamW's ε.", gt=0)
    grad_clip: float = knob(1.0, what="Largest norm of the gradient.", gt=0)


class ExternalRedis(SpecBlock):
    """A Redis of yours, for runs on a cluster."""

    secret_name: Name = knob(
        what="A Secret with the keys controller, trainer and worker: a redis:// URL with that role's login each."
    )


class Replay(SpecBlock):
    """The ledger's store."""

    backend: Literal["ManagedRedis", "External"] = knob("ManagedRedis", what="A Redis of the run's own, or yours.")
    external: ExternalRedis | None = knob(None, what="Cluster only: where yours is.")
    budget_bytes: Bytes = resting(
        2 << 30, what="Memory for samples; at 80 % a checkpoint is forced to free some.", unit="bytes",
        ge=1 << 20, le=1 << 50,
    )  # fmt: skip


class WeightSync(SpecBlock):
    """How new weights reach the servers."""

    mode: Literal["Auto", "SharedVolume", "Group"] = knob(
        "SharedVolume",
        what="How servers get versions, which are directories on the run's volume in any case: SharedVolume reads them "
        "there; Group sends them from the trainer to the servers by a process group, and any fault falls back to the "
        "volume; Auto is Group with one trainer process and no adapters and, with placement: shared, the machine's "
        "shared memory, from which the volume gets the versions of checkpoints and the last.",
    )
    servers: Literal["Mount", "Fetch"] = knob(
        "Mount",
        what="How servers read the start model and versions: Mount from the run's volume; Fetch over the network from "
        "a pod beside it, into a directory of their own, so that servers may be on nodes that can't mount the volume.",
    )
    interval_steps: int = knob(1, what="Publish every this many versions.", unit="steps", ge=1, le=1001)
    full_every: int = knob(
        10,
        what="On a cluster every this many publications in bfloat16 is a full one, the others are deltas; in float32 "
        "and on one machine all are full.",
        ge=1,
        le=10**6,
    )
    bucket_bytes: Bytes = knob(
        512 << 20,
        what="What a process group carries at a time; trainer and servers hold one such bucket.",
        unit="bytes",
        ge=1 << 10,
        le=1 << 34,
    )


class RecordingBlock(SpecBlock):
    """What a run keeps of its samples and tokens, for `areal view`. It never holds up or ends a run."""

    share: float = resting(1.0, what="Which part of the groups is kept, whole; 0 keeps none.", ge=0, le=1)
    budget_per_step: Bytes = resting(
        64 << 20, what="Of one step's samples and of its tokens, no more is kept.", unit="bytes", ge=1 << 10, le=1 << 50
    )
    keep: Bytes = resting(
        10 << 30, what="All that is kept on disk; the oldest goes first.", unit="bytes", ge=1 << 20, le=1 << 50
    )
    token_audit: bool = resting(
        False,
        what="Servers journal what they sample and the trainer what it trains, for `areal audit --tokens`; as many "
        "bytes again as `keep` at most.",
    )


class CheckpointBlock(SpecBlock):
    """What a restart continues from."""

    interval_steps: int = resting(20, what="Save every this many steps.", unit="steps", ge=1, le=10**9)
    keep: int = resting(2, what="How many checkpoints stay on disk.", ge=1, le=10**6)


class Export(SpecBlock):
    """Models for other programs while the run goes on: `exports/step-N` in the run directory, each a Hugging Face
    directory. Where rows are held out the best so far stays too, and `exports/best` links to it."""

    interval_steps: int = resting(
        what="Export every this many steps. The last model is in `model/` in any case.", unit="steps", ge=1, le=10**9
    )
    keep: int = resting(2, what="How many of the newest exports stay on disk, beside the best.", ge=1, le=10**6)
    metric: Word = resting(
        "mean",
        what="By which figure of the evaluations the best is the best: mean, avg@n or pass@k; of one set as SET/mean. "
        "Of SFT and DPO mean is the loss, and the lowest is the best.",
    )
