"""Shape of a decoder-only transformer, read from a Hugging Face config.json: sizes and number of parameters.

Owns which families the closed forms hold for. Others have no shape, and so no plan: nothing is guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal.spec import RLJob
from areal.spec.model_families import text_part

_BIASED = frozenset({"qwen2"})  # query, key and value have biases whatever the config says
_NORMED = frozenset({"qwen3", "qwen3_moe"})  # queries and keys are normalised a head
_PLAIN = frozenset({"llama", "mistral"})
_SPARSE = frozenset({"qwen3_moe"})  # with experts in every layer
_WITH_IMAGES = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_moe": "qwen3_moe"}
FAMILIES = {name: name for name in sorted(_BIASED | _NORMED | _PLAIN)} | _WITH_IMAGES
"""Families that the closed forms hold for, and the family that their language model is computed as."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model; `queries` and `keys` are heads times their width. Of `experts`, `intermediate` is one's."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    attention_bias: bool
    head_norms: bool
    experts: int = 0  # of a layer; a token goes to `chosen` of them
    chosen: int = 0
    tower: int = 0  # parameters that read images: frozen, on every rank with embedding and head
    pixels: int = 0  # numbers of a token of an image
    scores: bool = False  # a value model: a head of one number instead of the output layer

    @property
    def queries(self) -> int:
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_width

    def part(self, parts: int) -> "ModelShape":
        """What one of `parts` ranks computes of each layer that they split: some heads, a part of the inner width."""
        return replace(
            self, heads=self.heads // parts, kv_heads=self.kv_heads // parts, intermediate=self.intermediate // parts
        )

    @property
    def value_model(self) -> "ModelShape":
        """The model with a head of one number instead of its output layer: a critic, a reward model."""
        return replace(self, scores=True)

    @property
    def block_parameters(self) -> int:
        """Of one layer."""
        projections = self.hidden * (self.queries + 2 * self.keys) + self.queries * self.hidden
        biases = self.queries + 2 * self.keys if self.attention_bias else 0
        if self.attention_bias and self.family not in _BIASED:
            biases += self.hidden  # Llama's option is for the output, too
        norms = 2 * self.hidden + (2 * self.head_width if self.head_norms else 0)
        return projections + biases + norms + self.inner_parameters + self.experts * self.hidden

    @property
    def inner_parameters(self) -> int:
        """Of one layer's MLP, or of all its experts."""
        return max(1, self.experts) * 3 * self.hidden * self.intermediate

    @property
    def root_parameters(self) -> int:
        """Embedding, last norm and head, which are not of any layer; one matrix when they are tied."""
        matrices = 1 if self.tied or self.scores else 2
        return self.vocabulary * self.hidden * matrices + self.hidden * (2 if self.scores else 1)

    @property
    def root_gathered(self) -> int:
        """The same as a rank gathers it: a tied head is gathered, and its gradient reduced, beside the embedding."""
        matrices = 1 if self.scores and not self.tied else 2
        return self.vocabulary * self.hidden * matrices + self.hidden * (2 if self.scores else 1)

    @property
    def parameters(self) -> int:
        return self.layers * self.block_parameters + self.root_parameters

    @property
    def all_parameters(self) -> int:
        """With those that are never trained."""
        return self.parameters + self.tower

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Of LoRA matrices of a rank on these linear layers of every block."""
        hidden, inner = self.hidden, self.intermediate
        ends = {
            "q_proj": hidden + self.queries, "k_proj": hidden + self.keys, "v_proj": hidden + self.keys,
            "o_proj": self.queries + hidden, "gate_proj": hidden + inner, "up_proj": hidden + inner,
            "down_proj": inner + hidden,
        }  # fmt: skip
        return self.layers * rank * sum(ends[target] for target in targets)


def _with_tower(shape: ModelShape, kind: str, sizes: Mapping[str, Any]) -> ModelShape:
    """With what turns the patches of an image into tokens: a convolution, layers of attention, mergers of patches."""
    width = int(sizes["embed_dim" if kind == "qwen2_vl" else "hidden_size"])
    out = int(sizes["hidden_size" if kind == "qwen2_vl" else "out_hidden_size"])
    inner = int(width * sizes["mlp_ratio"] if kind == "qwen2_vl" else sizes["intermediate_size"])
    of_a_token = int(sizes.get("spatial_merge_size", 2)) ** 2  # patches
    colours = int(sizes.get("in_channels", sizes.get("in_chans", 3)))
    patch = colours * int(sizes.get("temporal_patch_size", 2)) * int(sizes["patch_size"]) ** 2
    merged = width * of_a_token
    gated = kind == "qwen2_5_vl"  # a gate in its layers, norms without biases
    norm = width if gated else 2 * width
    layer = 2 * norm + 4 * width * (width + 1) + ((3 * width + 2) * inner if gated else (2 * width + 1) * inner) + width
    merger = merged * (merged + 1) + (merged + 1) * out
    found = patch * width + int(sizes["depth"]) * layer + norm + merger
    if kind.startswith("qwen3"):  # learned positions, and features for the first layers of the language model
        found += width * (1 + int(sizes["num_position_embeddings"]))
        found += len(sizes["deepstack_visual_indexes"]) * (2 * merged + merger)
    return replace(shape, tower=found, pixels=patch * of_a_token)


def adapter_of(job: RLJob, shape: ModelShape) -> int | None:
    """Parameters of the adapter that is trained; None where all weights are."""
    lora = job.spec.trainer.lora
    return None if lora is None else shape.adapter_parameters(lora.rank, lora.targets)


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a config.json describes; None for a family or an option that the closed forms don't know."""
    kind, whole, config = str(config.get("model_type")), config, text_part(config)
    family = FAMILIES.get(kind)
    if family is None or config.get("mlp_bias"):
        return None
    try:
        sparse = family in _SPARSE
        if sparse and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
            return None  # some of its layers are dense
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        shape = ModelShape(
            family=family,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(config["moe_intermediate_size" if sparse else "intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=int(config.get("head_dim") or (128 if family in _NORMED else hidden // heads)),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            attention_bias=family in _BIASED or bool(config.get("attention_bias", False)),
            head_norms=family in _NORMED,
            experts=int(config["num_experts"]) if sparse else 0,
            chosen=int(config["num_experts_per_tok"]) if sparse else 0,
        )
        return _with_tower(shape, kind, whole["vision_config"]) if kind in _WITH_IMAGES else shape
    except (KeyError, TypeError, ValueError):
        return None
