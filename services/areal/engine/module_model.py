"""The forward pass of any other family: Hugging Face's own module, exact and slower than functions written by hand.

Nothing here knows a family. A version's weights are a module of their own, so that a swap is a reference assignment;
`file_views` says where in it each tensor of the files lies.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from areal.engine.cache import SMALLEST_CAPACITY
from areal.engine.model import DecoderModel
from areal.engine.model_config import ModelConfig
from areal.engine.weights import TensorSource, digests
from areal.errors import DataError
from areal.expert_routes import RouterMode, route_shape, rows_of
from areal.file_views import file_views, stored
from areal.image_shape import ImageShape
from areal.pixels import PixelReader
from areal.spec.model_families import VISION
from areal.values.images import Image

_APART = 1e-3  # log-probabilities of one token, by a step and by a whole pass, in float32


class ModuleWeights(NamedTuple):
    """All weights of one policy version: a causal language model of transformers."""

    lm: Any
    file_dtypes: dict[str, torch.dtype]


class ModuleCache:
    """Rows of the library's own cache, with the methods of `KVCache`.

    Keys and values are aligned on the right; what stands left of a row's beginning is masked. A recurrent layer's state
    has no length and a window only its end, so a row is had at its own end alone: `copy_rows` copies it whole.
    """

    def __init__(self, empty: Callable[[], Any]) -> None:
        self.empty = empty  # makes the library's cache of this model
        self.reset()

    def reset(self) -> None:
        """Give the memory back. Only when no row is live."""
        self.rows, self.capacity = 1, SMALLEST_CAPACITY
        self.past: Any = None  # the library's, once something was computed
        self._made = self._width = 0  # rows and positions of `past`

    def drop(self) -> None:
        """Give all of it back, until `reset`. Only when no row is live."""
        self.reset()
        self.rows = self.capacity = 0

    def reserve(self, rows: int, capacity: int, live_rows: int) -> None:
        """Expect `rows` rows of `capacity`; memory is taken as they grow."""
        self.rows, self.capacity = max(rows, live_rows), max(capacity, self.capacity)

    def copy_rows(self, source: Tensor, target: Tensor, length: int) -> None:
        """Copy rows `source` to rows `target` (int64 [n] each), whatever their length."""
        if self.past is not None:
            self._resize(max(self._made, int(target.max()) + 1), self._width)
            for holder, key, _ in _places(self.past):
                holder[key][target] = holder[key][source]

    def put(self, rows: Tensor, fresh: Any, length: int) -> None:
        """Make `rows` what a cache of as many prompts of one `length` holds."""
        if self.past is None:
            self.past = copy.deepcopy(fresh)
            for holder, key, _ in _places(self.past):
                holder[key] = holder[key][:0]
        self._resize(max(self._made, self.rows, int(rows.max()) + 1), max(self._width, length))
        for (holder, key, most), (source, _, _) in zip(_places(self.past), _places(fresh), strict=True):
            mine, other = holder[key], source[key]
            mine[rows] = 0
            (mine if most is None else mine[:, :, mine.shape[2] - other.shape[2] :])[rows] = other

    def step(self, positions: Tensor) -> Any:
        """The library's cache of the rows 0…n−1, which are about to get a token at `positions` (int64 [n])."""
        if self.past is None:
            self.past = self.empty()
        else:
            self._resize(len(positions), int(positions.max()))
            if not bool(positions.all()):  # nothing was computed of them: what lies there is another request's
                for holder, key, _ in _places(self.past):
                    holder[key][positions == 0] = 0
        self._made, self._width = len(positions), int(positions.max()) + 1
        return self.past

    def _resize(self, rows: int, width: int) -> None:
        if (rows, width) == (self._made, self._width):
            return
        for holder, key, most in _places(self.past):
            tensor = holder[key]
            pads = [0, 0] * (tensor.dim() - 1) + [0, rows - tensor.shape[0]]  # less than none cuts
            if most is not None:
                pads[2] = min(width, most) - tensor.shape[2]
            holder[key] = F.pad(tensor, pads)
        for layer in self.past.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = width
        self._made, self._width = rows, width


def _places(past: Any) -> Iterator[tuple[dict[Any, Tensor], Any, int | None]]:
    """Where each tensor of the library's cache lies, and of keys and values the most positions that a layer keeps."""
    for layer in past.layers:
        fields, most = vars(layer), layer.sliding_window - 1 if getattr(layer, "is_sliding", False) else 1 << 62
        for name in ("keys", "values"):
            if isinstance(fields.get(name), Tensor) and fields[name].dim() == 4:
                yield fields, name, most
        for states in (fields.get("conv_states", {}), fields.get("recurrent_states", {})):
            for place in [place for place, state in states.items() if state is not None]:
                yield states, place, None


class ModuleModel:
    """A module without memory for its weights, copied for each version."""

    rewinds = False  # a state is that of its end alone, and padding is part of it

    def __init__(self, config: ModelConfig, path: Path, dtype: torch.dtype, *, fp32_head: bool = False) -> None:
        """Raises DataError when transformers can't make the model in `path`."""
        self.config = config
        self._dtype = dtype
        self._proved = dtype != torch.float32  # rounding hides what it looks for
        self._empty = _empty_module(path, dtype)
        self._views = file_views(self._empty)
        self._routing = route_shape(self._empty)
        self.wants_routes = False  # of the next pass, where the model has experts
        self.routes: NDArray[np.uint8] | None = None  # of the tokens of the last one
        self.image_shape = ImageShape.from_dir(path, self._empty.config.to_dict())
        self._pixels = None if self.image_shape is None else PixelReader(path)
        self.images: Sequence[tuple[Image, ...]] = ()  # of each row of the next prefill
        self.shifts: NDArray[np.int64] | None = None  # of the positions of each row of the next step
        elements = sum(tensor.numel() for tensor in stored(self._empty).values())
        if elements != sum(math.prod(view.size) for view in self._views.values()):
            raise DataError(f"the files of {path} don't hold a whole {config.architecture}", fix="use another family")
        if fp32_head and dtype != torch.float32:
            self._empty.get_output_embeddings().register_forward_hook(_float32_head)

    def new_cache(self) -> ModuleCache:
        """Rows of the library's own cache."""
        from transformers import DynamicCache

        return ModuleCache(lambda: DynamicCache(config=self._empty.config.get_text_config()))

    def build(self, path: Path, raw: dict[str, Tensor]) -> ModuleWeights:
        """Weights of tensors by Hugging Face name. Raises DataError naming what is missing or misshapen."""
        source = TensorSource(path, raw, torch.float32)
        made = {name: torch.empty_like(each, device="cpu") for name, each in stored(self._empty).items()}
        for name, view in self._views.items():
            held = view.seen(tuple(raw[name].shape)) if name in raw else view
            held.of(made[view.tensor]).copy_(source.take(name, held.size))
        weights = ModuleWeights(_copied(self._empty, made), {name: tensor.dtype for name, tensor in raw.items()})
        if not self._proved:
            self._prove(weights)
        return weights

    def adapted(self, base: ModuleWeights, path: Path) -> ModuleWeights:
        """Raises DataError: no adapter is computed here."""
        words = f"{path} is an adapter, and a {self.config.architecture} is served by its Hugging Face module alone"
        raise DataError(words, fix="train without trainer.lora, or use generation.engine.type: sglang")

    def checksums(self, weights: ModuleWeights) -> dict[str, str]:
        """xxh3-128 of each tensor of the weights in use, by the file's name and in the file's dtype."""
        whole = stored(weights.lm)
        parts = ((name, view.of(whole[view.tensor])) for name, view in self._views.items())
        return digests(parts, weights.file_dtypes)

    def decode(self, weights: ModuleWeights, cache: ModuleCache, tokens: Tensor, positions: Tensor) -> Tensor:
        """Append one token to each of the rows 0…n−1 and return their next-token logits, float32 [n, vocab]."""
        width = int(positions.max())
        mask = torch.arange(width + 1) >= width - positions[:, None]
        at = positions if self.shifts is None else positions + torch.from_numpy(self.shifts)
        given = {"input_ids": tokens[:, None], "attention_mask": mask.long(), "position_ids": at[:, None]}
        logits: Tensor = self._passed(weights, **given, past_key_values=cache.step(positions)).logits
        return logits[:, -1].float()

    def prefill(
        self, weights: ModuleWeights, cache: ModuleCache | None, tokens: Tensor, rows: Tensor | None, *, hidden: bool
    ) -> Any:
        """Run whole prompts of one length, int64 [batch, length], into `rows` of the cache.

        With `hidden`, returns the logits of all positions: families end in more than a matrix.
        """
        if cache is not None and rows is not None:
            fresh, seen = cache.empty(), self._seen(tokens)
            self._passed(weights, input_ids=tokens, past_key_values=fresh, logits_to_keep=1, **seen)
            cache.put(rows, fresh, tokens.shape[1])
        return weights.lm(input_ids=tokens, use_cache=False).logits if hidden else None

    def _seen(self, tokens: Tensor) -> dict[str, Tensor]:
        """What a pass is told of the rows' images: patches in their order, and positions [3, rows, length]."""
        rows, self.images = self.images, ()
        if self.image_shape is None or self._pixels is None or not any(rows):
            return {}
        pixels, grids = self._pixels.read([image for images in rows for image in images])
        pairs = zip(tokens.numpy(), rows, strict=True)
        places = np.stack([self.image_shape.positions(ids, images) for ids, images in pairs], axis=1)
        return {"pixel_values": pixels, "image_grid_thw": grids, "position_ids": torch.from_numpy(places)}

    def _passed(self, weights: ModuleWeights, **given: Any) -> Any:
        """A pass with a cache. Which experts it chose, `routes` says where it is wanted and can be told."""
        self.routes, shape = None, self._routing
        if shape is None or not self.wants_routes:
            return weights.lm(**given, use_cache=True)
        with RouterMode(shape) as mode:
            told = weights.lm(**given, use_cache=True)
        if len(mode.chosen) == len(shape.routed):
            self.routes = rows_of(shape, mode.chosen)
        return told

    def logits(self, weights: ModuleWeights, hidden: Tensor) -> Tensor:
        """Of what `prefill` returned, in float32."""
        return hidden.float()

    @torch.inference_mode()
    def _prove(self, weights: ModuleWeights) -> None:
        """Raise DataError unless two rows of different lengths, stepped together, equal a whole pass of each."""
        ids, cache, ends = torch.arange(3, 15) % self.config.vocab, self.new_cache(), torch.tensor([11, 2])
        for row, length in enumerate(ends.tolist()):
            self.prefill(weights, cache, ids[None, 11 - length : 11], torch.tensor([row]), hidden=False)
        found = self.decode(weights, cache, ids[11:].repeat(2), ends)
        wholes = torch.stack([weights.lm(input_ids=ids[None, 11 - length :]).logits[0, -1] for length in ends.tolist()])
        apart = float((found.log_softmax(-1) - wholes.float().log_softmax(-1)).abs().max())
        if apart > _APART:
            words = f"a {self.config.architecture} computes a token in a batch otherwise than alone, by {apart:.2g}"
            raise DataError(words, fix="use generation.engine.type: sglang, or a model of another family")
        self._proved = True


def _float32_head(head: Any, inputs: tuple[Tensor], _: Tensor) -> Tensor:
    """Logits that were never rounded to the weights' precision."""
    return F.linear(inputs[0].float(), head.weight.float(), None if head.bias is None else head.bias.float())


def _empty_module(path: Path, dtype: torch.dtype) -> Any:
    """The model of a configuration on the meta device, with the buffers that it computes itself."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.initialization import no_init_weights

    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        auto: Any = AutoModelForImageTextToText if config.model_type in VISION else AutoModelForCausalLM
        with no_init_weights():
            if config.get_text_config() is config:
                lm = auto.from_config(config, dtype=dtype)  # experts: grouped_mm
            else:  # by its files, or nothing would know how they name the part that is served
                lm = auto.from_pretrained(path, dtype=dtype, trust_remote_code=False, local_files_only=True)
            lm = lm.eval().requires_grad_(False)
            lm.config.get_text_config().output_router_logits = False  # what a loss would ask of routers once more
        lm.tie_weights()  # which it leaves out together with drawing them
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:  # of any family's code
        raise DataError(f"the model in {path} can't be made: {error!r}", fix="check its config.json") from error
    return _copied(lm, {name: torch.empty_like(each, device="meta") for name, each in stored(lm).items()})


def _copied(lm: Any, tensors: dict[str, Tensor]) -> Any:
    """A copy with other tensors in the places of the stored ones, tied ones once."""
    memo: dict[int, Any] = {}
    for name, old in stored(lm).items():
        new = tensors[name]
        memo[id(old)] = nn.Parameter(new, requires_grad=False) if isinstance(old, nn.Parameter) else new
    return copy.deepcopy(lm, memo)


ServedModel: TypeAlias = DecoderModel | ModuleModel
