"""Shape of a decoder-only transformer, read from a Hugging Face config.json: sizes and number of parameters.

Owns which families the closed forms hold for. Others have no shape, and so no plan: nothing is guessed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areal.spec import RLJob

_BIASED = frozenset({"qwen2"})  # query, key and value have biases whatever the config says
_NORMED = frozenset({"qwen3", "qwen3_moe"})  # queries and keys are normalised a head
_PLAIN = frozenset({"llama", "mistral"})
_SPARSE = frozenset({"qwen3_moe"})  # with experts in every layer
FAMILIES = tuple(sorted(_BIASED | _NORMED | _PLAIN))


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

    def adapter_parameters(self, rank: int, targets: Sequence[str]) -> int:
        """Of LoRA matrices of a rank on these linear layers of every block."""
        hidden, inner = self.hidden, self.intermediate
        ends = {
            "q_proj": hidden + self.queries, "k_proj": hidden + self.keys, "v_proj": hidden + self.keys,
            "o_proj": self.queries + hidden, "gate_proj": hidden + inner, "up_proj": hidden + inner,
            "down_proj": inner + hidden,
        }  # fmt: skip
        return self.layers * rank * sum(ends[target] for target in targets)


def adapter_of(job: RLJob, shape: ModelShape) -> int | None:
    """Parameters of the adapter that is trained; None where all weights are."""
    lora = job.spec.trainer.lora
    return None if lora is None else shape.adapter_parameters(lora.rank, lora.targets)


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The shape that a config.json describes; None for a family or an option that the closed forms don't know."""
    family = str(config.get("model_type"))
    if family not in FAMILIES or config.get("mlp_bias"):
        return None
    try:
        sparse = family in _SPARSE
        if sparse and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
            return None  # some of its layers are dense
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
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
    except (KeyError, TypeError, ValueError):
        return None
