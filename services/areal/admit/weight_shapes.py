"""Shapes of a model's tensors against its config.json: what contradicts, and what can't be said.

Knows no families: an embedding, a head unless it is tied, layers 0…n-1, each with the parts and the shapes of its like,
and the matrices of attention and MLP by the sizes that config.json names. A size that it doesn't name is taken from the
first tensor that has it, so that tensors agree at least with one another. Pure.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from areal.errors import DataError
from areal.spec.model_families import is_tied, text_part
from areal.weights.safetensors_format import TensorHeader, model_files, read_header, read_index

# ---- Weight files of a model directory: which are the model's, and the name, shape and dtype of every tensor in them


AGAIN = "copy or download the model again"
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")


@dataclass(frozen=True)
class WeightFiles:
    """What the weights of a model directory say of themselves. `tensors`: by name, of all files."""

    tensors: Mapping[str, TensorHeader]

    @property
    def parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def matrices(self) -> frozenset[str]:
        """Last part of the names of modules with a matrix: q_proj, embed_tokens, … Not of those that experts have."""
        found = {name: name.split(".")[-2] for name, one in self.tensors.items() if len(one.shape) == 2 and "." in name}
        return frozenset(found.values()) - {own for name, own in found.items() if ".experts." in name}


def read_weights(model: Path) -> WeightFiles:
    """Read the headers of a model's weight files.

    Raises DataError for a file that is missing, cut off or none of that format, and for files that contradict their
    index or one another.
    """
    index = read_index(model)
    tensors: dict[str, TensorHeader] = {}
    files = model_files(model)
    for file in files:
        for tensor in _tensors(file):
            if tensor.name in tensors:
                raise DataError(f"{model}: the tensor {tensor.name} is in two files, {file.name} is one", fix=AGAIN)
            if index is not None and index.get(tensor.name) != file.name:
                said = index.get(tensor.name, "no file")
                raise DataError(f"{file} holds {tensor.name}, and the index says that {said} does", fix=AGAIN)
            tensors[tensor.name] = tensor
    if lost := sorted(set(index or ()) - set(tensors)):
        raise DataError(f"{model}: the index names {lost[0]}, which no file holds", fix=AGAIN)
    if (shards := next(_lost_shards(files), None)) is not None:
        raise DataError(f"{model}: {shards}", fix=AGAIN)
    return WeightFiles(tensors)


def _lost_shards(files: list[Path]) -> Iterator[str]:
    """Numbers that lack among files named like model-00001-of-00004.safetensors."""
    numbered = [found for file in files if (found := _SHARD.search(file.name))]
    for count in {int(found[2]) for found in numbered}:
        here = {int(found[1]) for found in numbered if int(found[2]) == count}
        if lost := sorted(set(range(1, count + 1)) - here):
            yield f"file {lost[0]} of {count} isn't there"


def _tensors(file: Path) -> list[TensorHeader]:
    try:
        start, tensors = read_header(file)
        there = file.stat().st_size
    except OSError as error:
        said = "is named by the index and isn't there" if not file.exists() else f"can't be read: {error.strerror}"
        raise DataError(f"{file} {said}", fix=AGAIN) from None
    except DataError as error:
        raise DataError(error.message, fix=AGAIN) from None
    needed = start + max((tensor.end for tensor in tensors), default=0)
    if there < needed:
        raise DataError(f"{file} is cut off: it has {there} of {needed} bytes", fix=AGAIN)
    return tensors


# ---- Shapes of a model's tensors against its config.json: what contradicts, and what can't be said


_FLOATS = ("F64", "F32", "F16", "BF16")
_QUANTISED = re.compile(r"(weight|qweight|qzeros|weight_packed|_blocks|_scale|_scale_inv|\.scales)$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings|embeddings|tok_embeddings)\.weight$")
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
_SCORE = re.compile(r"(^|\.)(score|classifier)\.weight$")
_LAYER = re.compile(r"(?:layers|h|blocks)\.(\d+)\.(.+)$")
_NORM = re.compile(r"^\w*(norm|ln_\w+)\.weight$")
_PREFIXES = ("model.", "language_model.model.", "model.language_model.", "model.decoder.", "backbone.", "transformer.")
_SPARSE = re.compile(r"(^|\.)(experts|gate|router)\.")  # a layer with one of these modules is a mixture's
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_HYBRID = re.compile(r"mamba|ssm|attn_layer|attn_type|full_attn|linear_attn|linear_num|hybrid|block_type|block_configs")
_OWN_WIDTH = ("llama", "mistral", "qwen2")  # a head's width is hidden size / heads, unless head_dim says another
_UNEVEN = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "block_configs")
_SIZES = {
    "hidden": ("hidden_size", "n_embd", "d_model"), "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads"), "kv": ("num_key_value_heads", "num_kv_heads"),
    "inner": ("intermediate_size", "ffn_hidden_size", "n_inner"), "width": ("head_dim",), "vocab": ("vocab_size",),
}  # fmt: skip

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class WeightOpinion:
    """What speaks against a model's weights, in words; `unseen` is what could not be looked at."""

    faults: tuple[str, ...]
    unseen: str = ""


def look_at_shapes(config: Mapping[str, Any], weights: WeightFiles) -> WeightOpinion:
    """Compare every tensor's name, shape and dtype with a config.json."""
    for name, tensor in weights.tensors.items():
        if tensor.dtype not in _FLOATS and len(tensor.shape) > 1 and _QUANTISED.search(name):
            return WeightOpinion((f"{name} is {tensor.dtype}: quantised weights can't be trained",))
    shapes = {name: tensor.shape for name, tensor in weights.tensors.items()}
    if not shapes:
        return WeightOpinion(("its weight files hold no tensor",))
    if (adapter := next((name for name in shapes if re.search(r"\.(lora_[AB]|base_layer)\.", name)), None)) is not None:
        return WeightOpinion((f"{adapter} is of an adapter that wasn't merged",))
    model = _NamedShapes(config, shapes)
    missing = [_SIZES[name][0] for name in ("hidden", "vocab", "layers", "heads") if model.size(name) is None]
    if missing:
        return WeightOpinion((), f"the weights' shapes: config.json names no {missing[0]}")
    parts = (_outside, _complete, _alike, _companions, _norms, _sized)
    return WeightOpinion(tuple(fault for part in parts for fault in part(model)))


@dataclass(frozen=True)
class _NamedShapes:
    config: Mapping[str, Any]
    shapes: Shapes

    @cached_property
    def text(self) -> Mapping[str, Any]:
        return text_part(self.config)

    def size(self, name: str) -> int | None:
        """A size that the configuration names; None also for one that differs from layer to layer."""
        found = next((self.text[key] for key in _SIZES[name] if self.text.get(key) is not None), None)
        if found is None and name == "layers":
            found = len(self.text.get("layers_block_type") or self.text.get("hybrid_override_pattern") or ())
        return found if isinstance(found, int) and found > 0 else None

    @property
    def matrix(self) -> tuple[int | None, int | None]:
        return self.size("vocab"), self.size("hidden")

    @cached_property
    def embeddings(self) -> list[str]:
        """Token embeddings by their names; by the shape where no name is known."""
        named = [name for name in self.shapes if _EMBEDDING.search(name) and not _LAYER.search(name)]
        text = [name for name in named if "vis" not in name and "audio" not in name]
        if text:
            return text
        return [name for name, shape in self.shapes.items() if shape == self.matrix and not _HEAD.search(name)][:1]

    @cached_property
    def prefix(self) -> str:
        """What the names of the decoder's tensors begin with."""
        return _EMBEDDING.sub(r"\1", self.embeddings[0]) if self.embeddings else ""

    @cached_property
    def layers(self) -> dict[int, dict[str, tuple[int, ...]]]:
        """Shapes of each decoder layer by the part of the name behind its number."""
        found: dict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        for name, shape in self.shapes.items():
            if name.startswith(self.prefix) and (at := _LAYER.match(name, len(self.prefix))):
                found[int(at[1])][at[2]] = shape
        return {number: found[number] for number in sorted(found) if "eh_proj.weight" not in found[number]}

    def kind(self, number: int) -> tuple[str, ...]:
        """Layers of one kind have the same parts."""
        parts, layers = self.layers[number], self.size("layers") or 0
        listed = self.text.get("layer_types") or self.text.get("layers_block_type")
        sparse = "sparse" if any(_SPARSE.search(part) for part in parts) else "dense"
        shares = "shares" if number >= layers - int(self.text.get("num_kv_shared_layers") or 0) else "own"
        if isinstance(listed, list) and len(listed) == layers and number < layers:
            alike = listed[number] in _ATTENTION and not self.two_attentions
            return "attention" if alike else str(listed[number]), sparse, shares
        if any(_HYBRID.search(key) and value for key, value in self.text.items()):
            return (",".join(sorted({part.split(".")[0] for part in parts})), sparse, shares)
        return "layer", sparse, shares

    @property
    def two_attentions(self) -> bool:
        """Whether full attention has other heads than windows have."""
        keys = ("global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "per_layer_config")
        return any(self.text.get(key) for key in keys)

    @property
    def uneven(self) -> bool:
        """Whether the configuration gives layers sizes of their own."""
        named = [value for key, value in self.text.items() if key in _UNEVEN or key.endswith("_per_layer")]
        return any(isinstance(value, list) and len({str(item) for item in value}) > 1 for value in named)

    def first(self, part: str, axis: int) -> int | None:
        """A dimension of the first layer's matrix of this name."""
        named = (shapes[name] for shapes in self.layers.values() for name in shapes if name.endswith(part))
        return next((shape[axis] for shape in named if len(shape) == 2), None)


def _outside(model: _NamedShapes) -> Iterator[str]:
    """Embedding, head and last norm."""
    expected = model.matrix
    if len(model.embeddings) != 1:
        yield (
            f"there are {len(model.embeddings)} token embeddings" if model.embeddings else "no tensor is the embedding"
        )
    elif model.embeddings[0].endswith("embed_tokens.weight") and model.prefix not in _PREFIXES:
        yield f"the names of its tensors begin with {model.prefix!r}, a causal language model's with 'model.'"
    scores = str((model.config.get("architectures") or [""])[0]).endswith("ForSequenceClassification")
    heads = [name for name in model.shapes if _HEAD.search(name)]
    for name in (*model.embeddings, *heads):
        if model.shapes[name] != expected:
            what = "the embedding" if name in model.embeddings else "the output layer"
            yield f"{what} {name} is {list(model.shapes[name])}, config.json says {list(expected)}"
    if scores and not any(_SCORE.search(name) for name in model.shapes):
        yield "there is no score.weight"
    if not scores and not heads and is_tied(model.config) is False:
        yield "tie_word_embeddings is false, and there is no lm_head.weight"
    normed = any(_NORM.match(part) for parts in model.layers.values() for part in parts)
    own = [name.removeprefix(model.prefix) for name in model.shapes if name.startswith(model.prefix)]
    last = [name for name in own if re.match(r"(?!per_layer)\w*(norm|ln_f)\w*\.weight$", name)]
    if normed and not last:
        yield "the norm behind the last layer isn't there"
    for name in last:
        shape = model.shapes[model.prefix + name]
        if len(shape) == 1 and shape[0] != model.size("hidden"):
            yield f"{model.prefix}{name} is {list(shape)}, config.json says [{model.size('hidden')}]"


def _complete(model: _NamedShapes) -> Iterator[str]:
    layers = model.size("layers") or 0
    if lost := sorted(set(range(layers)) - set(model.layers)):
        yield f"layer {lost[0]} isn't there; config.json says {layers} layers"
    elif more := sorted(set(model.layers) - set(range(layers))):
        yield f"there is a layer {more[0]}; config.json says {layers} layers"


def _alike(model: _NamedShapes) -> Iterator[str]:
    """Every layer against what most of its kind are."""
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in model.layers:
        groups[model.kind(number)].append(number)
    for numbers in groups.values():
        common = Counter(frozenset(model.layers[number]) for number in numbers).most_common(1)[0][0]
        for number in numbers:
            if odd := sorted(model.layers[number].keys() ^ common):
                has = "has" if odd[0] in model.layers[number] else "lacks"
                yield f"layer {number} {has} {odd[0]}, unlike the others of its kind"
        for part in () if model.uneven else sorted(common):
            shapes = {number: model.layers[number][part] for number in numbers if part in model.layers[number]}
            usual = Counter(shapes.values()).most_common(1)[0][0]
            for number, shape in shapes.items():
                if shape != usual:
                    yield f"{part} of layer {number} is {list(shape)}, of others of its kind {list(usual)}"


def _companions(model: _NamedShapes) -> Iterator[str]:
    """Parts that are nothing without others."""
    shares = bool(model.text.get("num_kv_shared_layers")) or bool(model.text.get("attention_k_eq_v"))
    together = [("gate_proj", ("up_proj", "down_proj")), ("up_proj", ("down_proj",)), ("down_proj", ("up_proj",))]
    together += [("down_proj", ("gate_proj",))] if model.first("gate_proj.weight", 0) else []
    if not shares:
        together += [("q_proj", ("k_proj", "v_proj")), ("k_proj", ("v_proj",)), ("v_proj", ("k_proj", "q_proj"))]
    if model.first("attn.o_proj.weight", 0):
        together += [("v_proj", ("o_proj",)), ("qkv_proj", ("o_proj",))]
    for number, parts in model.layers.items():
        modules = {part.removesuffix(".weight") for part in parts if part.endswith(".weight")}
        for module in modules:
            before, _, last = module.rpartition(".")
            if last == "gate_proj" and before.endswith(("attn", "attention")):
                continue  # of attention's output, not of an MLP
            for one, others in together:
                lost = [other for other in others if last == one and not _any_of(modules, before, other)]
                if lost:
                    yield f"layer {number} has {module} without {lost[0]}"
        for part in parts:
            if part.endswith("_proj.bias") and part.removesuffix(".bias") not in modules:
                yield f"layer {number} has {part} without its weight"


def _any_of(modules: set[str], before: str, name: str) -> bool:
    """Whether a module of this name is beside the others, alone or merged with its neighbour."""
    merged = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}.get(name, name)
    merged = "kv_a_proj_with_mqa" if name in ("k_proj", "v_proj") else merged
    return f"{before}.{name}" in modules or f"{before}.{merged}" in modules


def _norms(model: _NamedShapes) -> Iterator[str]:
    hidden = model.size("hidden")
    for number, parts in model.layers.items():
        for part, shape in parts.items():
            if _NORM.match(part) and len(shape) == 1 and shape[0] != hidden:
                yield f"{part} of layer {number} is {list(shape)}, config.json says [{hidden}]"
                return


def _sized(model: _NamedShapes) -> Iterator[str]:
    """The matrices of attention and MLP by sizes; a size that differs from layer to layer is nobody's here."""
    expected = {} if model.uneven else {**_attention(model), **_mlp(model)}
    told = set()
    for number, parts in model.layers.items():
        for part, shape in parts.items():
            module = part.replace("feed_forward.", "mlp.")
            if re.search(r"shared_|linear_attn|indexer|mamba|conv", part):
                continue
            if "experts." in part:
                if name := _wrong_expert(model, part, shape):
                    yield f"{part} of layer {number} is {list(shape)}, config.json says {name}"
                    return
                continue
            for name, wanted in expected.items():
                if module.endswith(name) and wanted != shape and None not in wanted and name not in told:
                    told.add(name)
                    yield f"{part} of layer {number} is {list(shape)}, config.json says {list(wanted)}"


def _attention(model: _NamedShapes) -> dict[str, tuple[int | None, ...]]:
    text, hidden, heads = model.text, model.size("hidden"), model.size("heads")
    assert heads is not None
    assert hidden is not None
    if text.get("linear_attn_config"):
        return {}  # some layers have heads of other widths
    if any(text.get(name) for name in ("kv_lora_rank", "q_lora_rank")):
        return _latent(model, hidden, heads)
    rows = model.first("self_attn.q_proj.weight", 0) or 0
    gated = 2 if text.get("attn_output_gate") or text.get("model_type") in _GATED else 1
    own = hidden // heads if text.get("model_type") in _OWN_WIDTH else None
    width = model.size("width") or own or rows // (heads * gated) or None
    if width is None or model.two_attentions:
        return {}
    kv = model.size("kv") or max(1, (model.first("self_attn.k_proj.weight", 0) or heads * width) // width)
    queries, keys = heads * width, kv * width
    return {
        ".q_proj.weight": (queries * gated, hidden), ".k_proj.weight": (keys, hidden),
        ".v_proj.weight": (keys, hidden), "attn.o_proj.weight": (hidden, queries),
        "attn.qkv_proj.weight": (queries + 2 * keys, hidden), ".q_proj.bias": (queries * gated,),
        ".k_proj.bias": (keys,), ".v_proj.bias": (keys,),
    }  # fmt: skip


_GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # each head's queries have a gate beside them


def _latent(model: _NamedShapes, hidden: int, heads: int) -> dict[str, tuple[int | None, ...]]:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries and keys through narrow matrices."""
    text = model.text
    try:
        rank, rope, plain, value = (
            int(text[name]) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        )
    except (KeyError, TypeError, ValueError):
        return {}
    narrow, queries = text.get("q_lora_rank"), heads * (plain + rope)
    return {
        ".q_a_proj.weight": (narrow, hidden), ".q_b_proj.weight": (queries, narrow),
        ".q_proj.weight": (queries, hidden),
        ".kv_a_proj_with_mqa.weight": (rank + rope, hidden), ".kv_b_proj.weight": (heads * (plain + value), rank),
        "attn.o_proj.weight": (hidden, heads * value),
    }  # fmt: skip


def _mlp(model: _NamedShapes) -> dict[str, tuple[int | None, ...]]:
    hidden, inner = model.size("hidden"), model.size("inner") or model.first("mlp.down_proj.weight", 1)
    return {
        "mlp.gate_proj.weight": (inner, hidden), "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner), "mlp.gate_up_proj.weight": (inner and 2 * inner, hidden),
        "mlp.c_fc.weight": (inner, hidden), "mlp.fc1.weight": (inner, hidden), "mlp.fc2.weight": (hidden, inner),
    }  # fmt: skip


def _wrong_expert(model: _NamedShapes, part: str, shape: tuple[int, ...]) -> str:
    """What config.json says of an expert's matrix, or of all experts' in one tensor; empty where they agree."""
    hidden, inner = model.size("hidden") or 0, model.text.get("moe_intermediate_size") or model.size("inner")
    found = re.search(r"experts\.(?:\d+\.)?(gate_proj|up_proj|down_proj|w1|w2|w3|gate_up_proj)(\.weight)?$", part)
    if found is None or not isinstance(inner, int):
        return ""
    rows = inner * (2 if found[1] == "gate_up_proj" else 1)
    if len(shape) == 3:
        return "" if sorted(shape[1:]) == sorted((rows, hidden)) else f"{rows} and {hidden} an expert"
    wanted = [hidden, rows] if found[1] in ("down_proj", "w2") else [rows, hidden]
    return "" if len(shape) != 2 or list(shape) == wanted else str(wanted)
