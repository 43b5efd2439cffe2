"""The engine: one sharded model and its optimizer; the policy's, and what a critic's shares with it.

Promises that a log-probability means the same everywhere: training, proximal recomputation and the canary go through
one forward pass. Never decides what to train; it is given micro-batches and a loss.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from areal.errors import DataError
from areal.expert_routes import experts_of, ids_of
from areal.file_views import View, stored
from areal.image_shape import ImageShape
from areal.pixels import PixelReader
from areal.spec.model_families import MASK_ONLY, refuse_router_losses
from areal.spec.training import Attention, Compile, Recompute
from areal.weights.adapter import AdapterConfig, tensor_name
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import BlockMask

from areal_trainer.data.batch import TokenBatch
from areal_trainer.data.micro_batches import MicroBatch, rank_micro_batches, segments_of, sent
from areal_trainer.engine import lora
from areal_trainer.engine.adam_states import AdamWOptions
from areal_trainer.engine.attention import SegmentLayout, block_mask_of, layout_of
from areal_trainer.engine.context import refuse_heads, split
from areal_trainer.engine.divergence import Divergence, TeacherOutputs
from areal_trainer.engine.group import RankGroup
from areal_trainer.engine.host_copy import TensorSpec
from areal_trainer.engine.load import load_weights, recompute
from areal_trainer.engine.model import (
    ModelRows,
    PolicyModel,
    ValueModel,
    config_json,
    empty_model,
    max_positions,
    sliding_window,
)
from areal_trainer.engine.optimizer import ShardedAdamW, like, local
from areal_trainer.engine.router_losses import RouterLosses

_log = logging.getLogger(__name__)

# Compiled transformer blocks (torch.compile): a block's small operations fused into fewer kernels. All blocks share
# their graphs, whatever the length of their rows: one for training, one for passes without gradient, each again where
# a micro-batch has several rows. A block that can't be compiled whole is an error, never slow in silence.

_MOST_GRAPHS = 64  # of one class of blocks: of policy, critic, reference and teacher, by a mask and by segments


def compile_block(block: nn.Module) -> None:
    """Compile the block's forward pass, at its first call. After `recompute`, before FSDP's hooks.

    A pass with a key-value cache stays as it is: there are few, each of another shape.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    as_it_is = block.forward
    compiled = torch.compile(as_it_is, dynamic=True, fullgraph=True)

    def forward(*args: Any, **kwargs: Any) -> Any:
        cached = kwargs.get("past_key_values") is not None
        return (as_it_is if cached else compiled)(*args, **kwargs)

    block.forward = forward


# Accumulating unsharded gradients saves a reduction a micro-batch but holds the whole gradient on every rank.
_ACCUMULATE_UNSHARDED_BELOW = 1 << 28  # parameters

Model = TypeVar("Model", PolicyModel, ValueModel)

LossFunction = Callable[[Tensor, Tensor, MicroBatch], Tensor]
"""(log-probs with gradient, entropy, micro-batch) → scalar; already divided by the global count of trained tokens."""


@dataclass(frozen=True)
class ModelOptions:
    """Numerics of the engine."""

    precision: Literal["float32", "bfloat16"] = "float32"
    attention: Attention = "dense"
    recompute: Recompute = "none"
    compile: Compile = "none"
    fp32_head: bool = False  # logits aren't rounded to the precision
    temperature: float = 1.0
    replay: bool = False  # tokens go to the experts that sampled them
    router: tuple[float, float] = (0.0, 0.0)  # weights of the routers' load balancing and z-loss
    adapter: AdapterConfig | None = None  # trained instead of all weights
    seed: int = 0  # of the adapter's first weights
    optimizer: AdamWOptions = field(default_factory=AdamWOptions)


def served_dtype(options: ModelOptions) -> torch.dtype:
    """Precision in which weights are exported."""
    return torch.bfloat16 if options.precision == "bfloat16" else torch.float32


def _places(micro: MicroBatch, attention: Attention, device: torch.device) -> SegmentLayout | BlockMask:
    """Layout or block mask that stands for the mask."""
    return block_mask_of(micro, device) if attention == "flex" else layout_of(micro, device)


def drops_gathered(ranks: RankGroup, mesh: DeviceMesh) -> bool:
    """Whether a layer's gathered weights are dropped after use.

    Alone on CPUs a rank would only lose time. On one GPU each pass copies the model once more, milliseconds, and two
    bytes a parameter are free.
    """
    return mesh.size(-1) > 1 or ranks.device.type == "cuda"


class ShardedModel(Generic[Model]):
    """FSDP2 over the mesh of ranks: each block is a unit, the rest (embedding, norm, output layer) is the root's."""

    def __init__(self, model: Model, model_path: Path, options: ModelOptions, ranks: RankGroup) -> None:
        self.options = options
        self.ranks = ranks
        self.model_path = model_path
        self._model: Model = model
        self._model.train()
        self._always_reduce = sum(p.numel() for p in model.parameters()) >= _ACCUMULATE_UNSHARDED_BELOW
        self._pixels = PixelReader(model_path) if model.reads_images else None
        self.routers = RouterLosses(model.routing, options.router, ranks)
        refuse_router_losses(config_json(model_path), str(model_path), *options.router)
        self._apart: list[nn.Module] = []  # units within blocks: experts, and one of each of adapters
        self._shard()
        load_weights(model, model_path, ranks.device)
        lora.draw(model.lm, options.seed)
        self._parameters = dict(model.named_parameters())  # the shards; between passes a module may show others
        self.optimizer = ShardedAdamW(self._parameters, options.optimizer, ranks)

    def _shard(self) -> None:
        half = torch.bfloat16 if self.options.precision == "bfloat16" else None
        policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
        mesh, layer_mesh, tensor_mesh = self.ranks.mesh, self.ranks.layer_mesh, self.ranks.tensor_mesh
        again = drops_gathered(self.ranks, layer_mesh)
        if self.ranks.context is not None:
            refuse_heads(self._model.config, self.ranks.context.size, 1 if tensor_mesh is None else tensor_mesh.size())
        if tensor_mesh is not None:
            split(self._model.lm, tensor_mesh)
        if self._model.recurrent or self._model.reads_images:
            self._refuse_cuts("reads images" if self._model.reads_images else "has recurrent layers")
        kind = self._model.config.model_type
        if kind in MASK_ONLY and (self.options.attention != "dense" or self.ranks.context is not None):
            fix = "set trainer.attention: dense and no trainer.mesh.context"
            raise DataError(f"attention of the family {kind} is told of nothing but a mask", fix=fix)
        compiled = self.options.compile == "blocks"
        if compiled and (self._model.recurrent or any(map(experts_of, self._model.blocks))):
            _log.warning("layers of %s aren't compiled: they have experts or a state", self._model.config.model_type)
            compiled = False
        for block in self._model.blocks:
            experts = experts_of(block)
            for module in experts:  # gathered apart: attention needn't hold them
                fully_shard(module, mesh=layer_mesh, mp_policy=policy, reshard_after_forward=again)
                self._apart.append(module)
            mode = self.options.recompute  # a unit within what is computed again has no choice of what to keep
            recompute(block, "full" if experts and mode == "selective" else mode)
            if compiled:
                compile_block(block)
            if adapters := lora.adapters_of(block):  # of another precision than the frozen weights: a unit of their own
                fully_shard(adapters, mesh=layer_mesh, mp_policy=policy, reshard_after_forward=again)
                self._apart.append(adapters[0])
            fully_shard(block, mesh=layer_mesh, mp_policy=policy, reshard_after_forward=again)
        for module in self._model.exact:
            fully_shard(module, mesh=mesh, reshard_after_forward=False)
        fully_shard(self._model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
        self._prefetch()

    def _prefetch(self) -> None:
        """Explicit prefetch: a layer is gathered while the one before computes, its experts while its attention does.

        Not adapters: a pass of the base alone leaves them out, and the next step would find old weights gathered.
        """
        blocks: list[Any] = self._model.blocks
        block: Any
        following: Any
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            block.set_modules_to_forward_prefetch([*experts_of(block), *([following] if following else [])])
            if following is not None and not self._apart:  # else unit by unit, by default
                following.set_modules_to_backward_prefetch([block])

    def _refuse_cuts(self, why: str) -> None:
        """What would cut a sequence, or a block, in a way that a state or an image doesn't follow."""
        asked = {"trainer.mesh.context": self.ranks.context, "trainer.mesh.tensor": self.ranks.tensor_mesh}
        if refused := [name for name, mesh in asked.items() if mesh is not None]:
            kind = self._model.config.model_type
            raise DataError(f"{refused[0]} isn't possible for {kind}, which {why}", fix="leave it out")

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model takes."""
        return max_positions(self._model.config, self.options.attention)

    @property
    def window(self) -> int | None:
        """How many tokens a layer with a sliding window looks at; None without such layers."""
        return sliding_window(self._model.config)

    def _reshard(self) -> None:
        """Drop what a pass without gradient gathered, or the next pass would use it after the weights changed."""
        for module in (*self._model.blocks, *self._model.exact, *self._apart, self._model):
            module.reshard()  # type: ignore[operator]

    @torch.no_grad()
    def infer(self, micros: Sequence[MicroBatch], tokens: int, forward: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Outputs of `forward` for all ranks' predicted tokens, [tokens] on the CPU; 0 where none was predicted."""
        out = torch.zeros(tokens, dtype=torch.float32, device=self.ranks.device)
        for micro in micros:
            out[sent(micro.token_index, out.device)] = forward(micro)
        self._reshard()
        self.ranks.add(out)  # every token is predicted on exactly one data rank
        return out.cpu()

    def backward(self, micros: Sequence[MicroBatch], loss: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Forward and backward over all micro-batches; gradients add up. Returns this rank's loss."""
        total = torch.zeros((), dtype=torch.float32, device=self.ranks.device)
        self.routers.begin(micros, self._routes if self.replays else None, self.forward)  # type: ignore[attr-defined]
        for number, micro in enumerate(micros):
            last = number == len(micros) - 1
            self._model.set_requires_gradient_sync(last or self._always_reduce)  # type: ignore[operator]
            self._model.set_requires_all_reduce(last)  # type: ignore[operator]  # between replicas, once is enough
            # True by default: else the root's float32 gradient of embedding and head waits for the next backward pass
            self._model.set_is_last_backward(last or self._always_reduce)  # type: ignore[operator]
            value = loss(micro)
            (value * self.ranks.averaged).backward()  # type: ignore[no-untyped-call]
            total += value.detach()
        return total

    def micros(
        self, batch: TokenBatch, chosen: NDArray[np.int64], predicted: NDArray[np.bool_], tokens: int, row: int | None
    ) -> list[MicroBatch]:
        """This rank's share of the `chosen` sequences, in micro-batches of so many `tokens` and rows of that length."""
        share = {"rank": self.ranks.data_rank, "world_size": self.ranks.data_size}
        return rank_micro_batches(batch, chosen, predicted, **share, micro_batch_tokens=tokens, pack_length=row)

    def _rows(self, micro: MicroBatch, masked: bool = False) -> tuple[ModelRows, Tensor, Callable[[Tensor], Tensor]]:
        """Inputs of a micro-batch, the targets of what it predicts, and the step from these to [predicted]."""
        context = self.ranks.context
        micro = micro.padded(context.size if context else 1)
        on_device = micro.to(self.ranks.device)
        attention = "dense" if masked else self.options.attention
        seen = on_device.attention_mask() if attention == "dense" else _places(micro, attention, self.ranks.device)
        ids, positions, select = on_device.input_ids, on_device.position_ids, on_device.select
        routes, router = self._routes(micro), self.routers.of(on_device)
        if context is None:
            states = segments_of(micro) if self._model.recurrent else None
            pixels = None
            if micro.images and self._pixels is None:
                raise DataError(f"{self.model_path} reads no images, and samples have some", fix="use one that does")
            if micro.images and micro.image_positions is not None and self._pixels is not None:
                patches, grids = self._pixels.read(micro.images)
                pixels = sent(patches, ids.device), sent(grids, ids.device)
                positions = torch.cat([positions[None], sent(micro.image_positions, ids.device)])
            rows = ModelRows(ids, positions, seen, select, None, states, routes, router, pixels)
            return rows, on_device.targets, lambda told: told
        mine, places = (sent(part, ids.device) for part in context.chosen(micro.select, ids.shape[1]))
        rows = ModelRows(context.run(ids), context.run(positions), seen, places, context, routes=routes, router=router)
        return rows, on_device.targets[mine], lambda told: context.gather(told, mine, len(select))

    @property
    def replays(self) -> bool:
        """Whether tokens go to the experts that sampled them."""
        return self.options.replay and self._model.routing is not None

    def _routes(self, micro: MicroBatch) -> Tensor | None:
        """The experts of this rank's run of the micro-batch's tokens, [tokens, layers, chosen]."""
        shape, context = self._model.routing, self.ranks.context
        if micro.routes is None or shape is None or not self.options.replay:
            return None
        mine = micro.routes if context is None else context.run(micro.routes)
        return sent(ids_of(shape, mine.flatten(0, 1)), self.ranks.device)

    def base_alone(self) -> AbstractContextManager[None]:
        """Passes are of the model without its adapter: the start model, with no second one in memory."""
        return lora.without_adapters(self._model)

    def parameters(self) -> Iterator[Tensor]:
        """This rank's shards of all parameters, frozen ones too."""
        yield from self._parameters.values()

    def trained(self) -> dict[str, Tensor]:
        """This rank's shards of the parameters that are trained, by name."""
        return {name: p for name, p in self._parameters.items() if p.requires_grad}

    @property
    def updates(self) -> int:
        """Updates of the optimizer."""
        return self.optimizer.updates

    def set_updates(self, updates: int) -> None:
        """After `state()` was filled from a checkpoint: how many updates it holds."""
        self.optimizer.set_updates(updates)

    def state(self) -> dict[str, Tensor]:
        """Everything that a checkpoint holds of model and optimizer, sharing memory with the engine.

        Frozen weights are the start model's.
        """
        model = {f"model.{name}": like(p, local(p.detach())) for name, p in self.trained().items()}
        return {**model, **{f"optimizer.{name}": value for name, value in self.optimizer.state().items()}}

    def _whole(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        """All of a parameter, on the device. A collective; what it returns may share memory with the engine."""
        data = parameter.detach().to(dtype)  # before the gather: half the bytes on the wire
        whole = data.full_tensor() if isinstance(data, DTensor) and self.ranks.shards > 1 else local(data)
        return whole.contiguous()

    def _of_files(self, dtype: torch.dtype) -> Iterator[tuple[Tensor, torch.dtype, dict[str, View]]]:
        """Each shard, the dtype that is served and the files' tensors in it; buffers keep theirs, seldom rounded."""
        shards = {name.removeprefix("lm."): parameter for name, parameter in self._parameters.items()}
        within: dict[str, dict[str, View]] = {}
        for name, view in self._model.views.items():
            within.setdefault(view.tensor, {})[name] = view
        for name, tensor in stored(self._model.lm).items():
            if name in within:
                yield shards.get(name, tensor), dtype if name in shards else tensor.dtype, within[name]

    def rng_states(self) -> dict[str, NDArray[np.uint8]]:
        """The state of each of this rank's generators, by device type."""
        states = {"cpu": torch.get_rng_state().numpy()}
        if self.ranks.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.ranks.device).numpy()
        return states

    def set_rng_states(self, states: Mapping[str, NDArray[np.uint8]]) -> None:
        """Continue this rank's random numbers, on the devices that have a state."""
        if "cpu" in states:
            torch.set_rng_state(torch.from_numpy(states["cpu"].copy()))
        if "cuda" in states:
            torch.cuda.set_rng_state(torch.from_numpy(states["cuda"].copy()), self.ranks.device)


class PolicyEngine(ShardedModel[PolicyModel]):
    """The policy: log-probabilities of tokens, and its weights as they are served."""

    def __init__(self, model_path: Path, options: ModelOptions, ranks: RankGroup) -> None:
        model = empty_model(model_path, fp32_head=options.fp32_head, fused_head=options.compile == "blocks")
        if options.adapter is not None:
            lora.adapt(model.lm, options.adapter, served_dtype(options))
            lora.refuse_parts(model.lm, model.views, options.adapter.targets)
            self._known = {v.tensor.removesuffix(".weight"): lora.known_as(f, v.tensor) for f, v in model.views.items()}
        super().__init__(model, model_path, options, ranks)
        for method in ("next_token", "own_logits", "taught", "divergence"):
            register_fsdp_forward_method(self._model, method)

    @property
    def vocabulary(self) -> int:
        """Number of token ids that the model knows."""
        return int(self._model.config.vocab_size)

    @property
    def image_shape(self) -> ImageShape | None:
        """How the model's processor cuts images; None for a model that reads none."""
        return ImageShape.from_dir(self.model_path, config_json(self.model_path))

    def forward(
        self, micro: MicroBatch, temperature: float | None = None, *, masked: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the micro-batch's predicted tokens, [predicted] each.

        `masked` attends by the mask, the reference, whatever the options say.
        """
        rows, targets, whole = self._rows(micro, masked)
        at = self.options.temperature if temperature is None else temperature
        logprobs, entropy = self._model(rows, targets, at)
        return whole(logprobs), whole(entropy)

    def divergence(self, micro: MicroBatch, teacher: "PolicyEngine", measure: Divergence) -> Tensor:
        """Divergence of the micro-batch's predicted tokens from a teacher's distributions, [predicted].

        The gradient is this model's alone.
        """
        rows, _, whole = self._rows(micro)
        return whole(self._model.divergence(rows, teacher.taught(micro), measure))

    @torch.no_grad()
    def taught(self, micro: MicroBatch) -> TeacherOutputs:
        """Teacher outputs for a student of this model. Its output layer stays gathered for it."""
        return self._model.taught(self._rows(micro)[0])

    def logprobs(
        self, micros: Sequence[MicroBatch], tokens: int, temperature: float | None = None, *, masked: bool = False
    ) -> Tensor:
        """Log-probabilities of all ranks' predicted tokens, [tokens] on the CPU; 0 where none was predicted."""
        return self.infer(micros, tokens, lambda micro: self.forward(micro, temperature, masked=masked)[0])

    def base_logprobs(self, micros: Sequence[MicroBatch], tokens: int) -> Tensor:
        """As `logprobs`, of the model without its adapter: the start model, with no second one in memory."""
        with self.base_alone():
            return self.logprobs(micros, tokens)

    @torch.no_grad()
    def most_likely(self, token_ids: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """The `count` tokens that follow `token_ids` when each is the most likely one. A collective."""
        made: list[int] = []
        cache = self._model.new_cache()
        fresh = torch.from_numpy(token_ids)[None].to(self.ranks.device)
        for _ in range(count):
            fresh = self._model.next_token(fresh, cache)
            made.append(int(fresh))
        self._reshard()
        return np.array(made, np.int64)

    @torch.no_grad()
    def own_logprobs(self, token_ids: NDArray[np.int64], count: int) -> Tensor:
        """Log-probabilities of the last `count` tokens by the family's own code, [count] on the CPU. A collective."""
        ids = torch.from_numpy(token_ids)[None].to(self.ranks.device)
        with torch.compiler.set_stance("force_eager"):  # what is compiled is ours
            logits = self._model.own_logits(ids, count + 1)[:-1] / self.options.temperature
        self._reshard()
        return torch.log_softmax(logits, -1).gather(1, ids[0, -count:, None])[:, 0].cpu()

    def accumulate(self, micros: Sequence[MicroBatch], loss: LossFunction) -> Tensor:
        """Forward and backward over all micro-batches; gradients add up. Returns this rank's loss."""
        return self.backward(micros, lambda micro: loss(*self.forward(micro), micro))

    def export_specs(self, owners: Mapping[str, int] | None = None) -> dict[str, TensorSpec]:
        """Shape and dtype of what `export` yields with these owners, by its Hugging Face name."""
        return {
            name: TensorSpec(view.size, dtype)
            for _, dtype, views in self._exported()
            for name, view in views.items()
            if owners is None or owners[name] == self.ranks.rank
        }

    def export(self, owners: Mapping[str, int] | None = None) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors in the dtype that is served, on the device, under their Hugging Face names; an adapter's alone,
        under peft's, where that is what is trained.

        A collective: all ranks must iterate to the end. Yields those that this rank owns, all of them without `owners`;
        only the replica of its owner gathers a tensor. It may share memory with the engine, so it is copied before
        training goes on.
        """
        ranks = self.ranks
        for tensor, dtype, views in self._exported():
            owned = {name: ranks.rank if owners is None else owners[name] for name in views}
            if ranks.replica_of(ranks.rank) not in map(ranks.replica_of, owned.values()):
                continue
            whole = self._whole(tensor, dtype)
            for name, view in views.items():
                if owned[name] == ranks.rank:
                    yield name, view.of(whole).contiguous()

    def _exported(self) -> Iterator[tuple[Tensor, torch.dtype, dict[str, View]]]:
        """What is published: each shard, the dtype that is served, and the files' tensors in it."""
        dtype = served_dtype(self.options)
        if self.options.adapter is None:
            yield from self._of_files(dtype)
            return
        for name, parameter in self._parameters.items():
            if lora.is_adapter(name):
                module, matrix = lora.module_and_matrix(name.removeprefix("lm."))
                named = tensor_name(self._known[module], matrix)
                shape = tuple(parameter.shape)
                yield parameter, dtype, {named: View(name, 0, shape, torch.empty(shape, device="meta").stride())}


class ValueEngine(ShardedModel[ValueModel]):
    """Values of states. Every method is a collective."""

    def __init__(self, model_path: Path, options: ModelOptions, ranks: RankGroup) -> None:
        super().__init__(ValueModel(empty_model(model_path)), model_path, options, ranks)
        local(self._model.head.weight.detach()).zero_()  # no opinion: the first advantages are the rewards

    def forward(self, micro: MicroBatch) -> Tensor:
        """The value of the state before each of the micro-batch's predicted tokens, [predicted]."""
        rows, _, whole = self._rows(micro)
        return whole(self._model(rows))

    def values(self, micros: Sequence[MicroBatch], tokens: int) -> Tensor:
        """Values before all ranks' predicted tokens, [tokens] on the CPU; 0 where none was predicted."""
        return self.infer(micros, tokens, self.forward)

    def accumulate(self, micros: Sequence[MicroBatch], loss: Callable[[Tensor, MicroBatch], Tensor]) -> Tensor:
        """Forward and backward over all micro-batches; gradients add up. Returns this rank's loss."""
        return self.backward(micros, lambda micro: loss(self.forward(micro), micro))

    def export(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors under the names of Hugging Face's sequence classification, the head in float32.

        A collective: all ranks must iterate to the end. A tensor may share memory with the engine.
        """
        for tensor, dtype, views in self._of_files(served_dtype(self.options)):
            whole = self._whole(tensor, dtype)
            yield from ((name, view.of(whole).contiguous()) for name, view in views.items() if name != "lm_head.weight")
        yield "score.weight", self._whole(self._parameters["head.weight"], torch.float32)
