"""Rules of the trainer's mesh: how its processes divide the work, and that each has some."""

from areal.spec.gpu_defaults import PROCESSES_CEL
from areal.spec.job import RLJob
from areal.spec.rules import Facts, rule, rule_of_every_training
from areal.spec.training import Trainer

_MESH = "self.spec.trainer.mesh"
_TOGETHER = f"{_MESH}.context * {_MESH}.tensor"
_WORLD_CEL = f"self.spec.trainer.replicas * {PROCESSES_CEL}"


def _processes(trainer: Trainer) -> str:
    return f"{trainer.replicas}·{trainer.proc_per_node} = {trainer.world_size} processes"


@rule(
    "Every trainer process has a sample of every update; processes that split layers or tokens share theirs.",
    cel=(
        f"{_WORLD_CEL} * self.spec.algorithm.miniBatches "
        f"<= self.spec.algorithm.batchSize * self.spec.algorithm.groupSize * {_TOGETHER}"
    ),
)
def ranks_without_samples(job: RLJob, facts: Facts) -> str | None:
    algorithm, trainer = job.spec.algorithm, job.spec.trainer
    samples, needed = algorithm.batch_size * algorithm.group_size, trainer.data_ranks * algorithm.mini_batches
    if needed <= samples:
        return None
    split = f" in groups of {trainer.mesh.together}" if trainer.mesh.together > 1 else ""
    return (
        f"{_processes(trainer)}{split} in {algorithm.mini_batches} mini-batches need {needed} samples a step; "
        f"batchSize·groupSize is {algorithm.batch_size}·{algorithm.group_size} = {samples}"
    )


@rule_of_every_training(
    "Copies of the model have as many processes each: replicate·context·tensor divides replicas·procPerNode.",
    cel=f"({_WORLD_CEL}) % ({_MESH}.replicate * {_TOGETHER}) == 0",
)
def mesh(job: RLJob, facts: Facts) -> str | None:
    trainer, mesh = job.spec.trainer, job.spec.trainer.mesh
    if trainer.world_size % (mesh.replicate * mesh.together) == 0:
        return None
    parts = f", each in parts of {mesh.together}" if mesh.together > 1 else ""
    return f"{_processes(trainer)} don't split into {mesh.replicate} equal copies{parts}"


@rule_of_every_training(
    "The processes that split a layer are of one node: mesh.tensor divides procPerNode.",
    cel=f"{PROCESSES_CEL} % {_MESH}.tensor == 0",
)
def tensor_within_node(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.proc_per_node % trainer.mesh.tensor == 0:
        return None
    return f"{trainer.proc_per_node} processes of a node don't make groups of {trainer.mesh.tensor}"


@rule_of_every_training(
    "A standby is of the one trainer process of a node: several meet again, and wait for the last.",
    cel=f"!self.spec.trainer.standby || {PROCESSES_CEL} == 1",
)
def standby_of_one_process(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if not trainer.standby or trainer.proc_per_node == 1:
        return None
    return f"a node has {trainer.proc_per_node} processes"


@rule_of_every_training(
    "Layers with adapters are not split.", cel=f"!has(self.spec.trainer.lora) || {_MESH}.tensor == 1"
)
def tensor_with_adapters(job: RLJob, facts: Facts) -> str | None:
    trainer = job.spec.trainer
    if trainer.lora is None or trainer.mesh.tensor == 1:
        return None
    return f"adapters are trained, and each layer would be split over {trainer.mesh.tensor} processes"


@rule_of_every_training("A layer splits between its heads of keys and values: mesh.tensor divides their number.")
def tensor_divides_trained_heads(job: RLJob, facts: Facts) -> str | None:
    parts, heads = job.spec.trainer.mesh.tensor, facts.model_key_value_heads
    if heads is None or heads % parts == 0:
        return None
    return f"{heads} heads of keys and values don't split into {parts} equal parts"


@rule_of_every_training(
    "Processes that split tokens exchange them for heads: mesh.context·tensor divides the heads, and of those of keys "
    "and values a process has as many as others, or shares one."
)
def context_divides_heads(job: RLJob, facts: Facts) -> str | None:
    mesh, heads, shared = job.spec.trainer.mesh, facts.model_attention_heads, facts.model_key_value_heads
    if mesh.context == 1 or heads is None or shared is None or shared % mesh.tensor:
        return None
    heads, shared = heads // mesh.tensor, shared // mesh.tensor
    if heads % mesh.context == 0 and (shared % mesh.context == 0 or mesh.context % shared == 0):
        return None
    return f"{heads} heads and {shared} of keys and values don't split into {mesh.context} equal parts"
