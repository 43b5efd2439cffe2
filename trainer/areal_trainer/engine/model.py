"""A Hugging Face causal language model as this trainer sees it: packed rows in, log-probabilities out.

Owns the two settings that packing depends on: no key-value cache (with it, models silently ignore the reset of
positions; only `next_token`, which packs nothing, has one) and an explicit block-causal mask. Refuses models whose
logits are not hidden·Wᵀ.
"""

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from areal.errors import BugError, DataError
from areal.expert_routes import RouterMode, route_shape
from areal.file_views import file_views
from areal.spec.model_families import VISION, refuse_unscorable, refuse_untrainable
from areal.spec.training import Attention
from areal.values.routes import RouteShape
from areal.weights.safetensors_format import model_files
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from areal_trainer.data.micro_batches import Segments
from areal_trainer.engine.attention import PACKED, SegmentLayout, register
from areal_trainer.engine.context import Context
from areal_trainer.engine.divergence import Divergence, TeacherOutputs, chunked_divergence
from areal_trainer.engine.logprob import chunked_logprobs, float32_logits
from areal_trainer.engine.recurrence import by_segments


@dataclass(frozen=True)
class ModelRows:
    """Packed rows as the decoder takes them: whole, or with a context, this rank's run of each row's tokens."""

    input_ids: Tensor  # [rows, length]
    position_ids: Tensor  # [rows, length], with pixels [4, rows, length]: in the text, in time, down and across
    seen: Tensor | SegmentLayout | BlockMask  # what a token attends to, of whole rows: a mask, or what stands for it
    select: Tensor  # [selected]: flat positions whose output is wanted
    context: Context | None = None
    segments: Segments | None = None  # of a model with recurrent layers
    routes: Tensor | None = None  # [tokens, layers, chosen]: the experts that each token goes to
    router: Callable[..., Any] | None = None  # of a pass whose routers have losses: (output, logits, experts) → output
    pixels: tuple[Tensor, Tensor] | None = None  # patches [patches, values] of the rows' images, and grids [images, 3]


class _DecoderModel(nn.Module):
    """What both models have: a language model."""

    lm: Any

    @property
    def config(self) -> Any:
        """Of the language model alone."""
        return self.lm.config.get_text_config()

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks, in order."""
        return list(self.lm.get_decoder().layers)

    @property
    def exact(self) -> list[nn.Module]:
        """Parts that compute in float32, whatever the rest does."""
        return []


class PolicyModel(_DecoderModel):
    """Wraps a causal language model. The output layer runs inside `forward`, where its shards are gathered."""

    def __init__(self, lm: Any, fp32_head: bool = False, fused_head: bool = False) -> None:
        super().__init__()
        _refuse_unknown(lm)
        _zero_dropout(lm)
        self.lm = lm
        self.reads_images = lm.config.model_type in VISION
        if self.reads_images:
            lm.base_model.visual.requires_grad_(False)
        self.views = file_views(lm)
        self.recurrent = by_segments(lm)
        self.routing = by_routes(lm)
        self._exact = fp32_head
        self._fused = fused_head

    def forward(self, rows: ModelRows, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of the `targets` at the selected positions, each [selected]."""
        flat = _hidden(self.lm, rows)
        weight = self.lm.get_output_embeddings().weight
        return chunked_logprobs(flat, weight, targets, temperature, exact=self._exact, fused=self._fused)

    def taught(self, rows: ModelRows) -> TeacherOutputs:
        """Teacher outputs at the selected positions. They share memory with this model."""
        flat = _hidden(self.lm, rows)
        return TeacherOutputs(flat.detach(), self.lm.get_output_embeddings().weight.detach(), self._exact)

    def divergence(self, rows: ModelRows, taught: TeacherOutputs, measure: Divergence) -> Tensor:
        """Divergence of the distributions at the selected positions from a teacher's, [selected]."""
        flat = _hidden(self.lm, rows)
        return chunked_divergence(flat, self.lm.get_output_embeddings().weight, taught, measure)

    def new_cache(self) -> Any:
        """Keys and values of no token yet, for `next_token`."""
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def next_token(self, input_ids: Tensor, cache: Any) -> Tensor:
        """The most likely token after `input_ids` [1, new], which follow what `cache` holds; [1, 1]."""
        hidden = self.lm.get_decoder()(input_ids=input_ids, past_key_values=cache, use_cache=True).last_hidden_state
        logits = float32_logits(hidden[:, -1], self.lm.get_output_embeddings().weight, self._exact)
        return logits.argmax(-1, keepdim=True)

    def own_logits(self, input_ids: Tensor, count: int) -> Tensor:
        """Logits behind the last `count` of `input_ids` [1, tokens] as the family's own code computes all of it:
        its masks, its attention, its output layer; [count, vocabulary] in float32."""
        kept = {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(self.lm.forward).parameters else {}
        own = "sdpa" if self.lm._supports_sdpa else "eager"
        ours, self.config._attn_implementation = self.config._attn_implementation, own
        try:
            logits: Tensor = self.lm(input_ids=input_ids, use_cache=False, **kept).logits
        finally:
            self.config._attn_implementation = ours
        return logits[0, -count:].float()


class ValueModel(_DecoderModel):
    """The decoder of a language model with a head of one number: what the state before a token is worth."""

    def __init__(self, policy: PolicyModel) -> None:
        super().__init__()
        self.lm = policy.lm
        self.recurrent, self.reads_images = policy.recurrent, policy.reads_images
        self.routing = None  # a critic's routers choose by themselves
        if not is_tied(policy):
            self.lm.set_output_embeddings(nn.Identity())  # a matrix that nothing would use
        kept = self.lm.state_dict()
        self.views = {name: view for name, view in policy.views.items() if view.tensor in kept}
        self.head = nn.Linear(policy.config.hidden_size, 1, bias=False, device="meta")

    @property
    def exact(self) -> list[nn.Module]:
        return [self.head]

    def forward(self, rows: ModelRows) -> Tensor:
        """The value at the selected positions, [selected]."""
        flat = _hidden(self.lm, rows)
        values: Tensor = self.head(flat.float()).squeeze(-1).clone()  # a view would lose FSDP's hook
        return values


def _hidden(lm: Any, rows: ModelRows) -> Tensor:
    """Hidden states of the decoder at the selected positions, [selected, width]."""
    attended: dict[str, Any] = {"attention_mask" if isinstance(rows.seen, Tensor) else "layout": rows.seen}
    more = {"context": rows.context, "segments": rows.segments, "routes": rows.routes, "router": rows.router}
    attended |= {name: value for name, value in more.items() if value is not None}
    decoder = lm.get_decoder()
    if rows.pixels is not None:
        with torch.no_grad():  # the tower is frozen
            seen = lm.base_model.get_image_features(*rows.pixels, return_dict=True)
        decoder, attended["mm_encoder_outputs"] = lm.base_model, {"image": seen}
    states: Tensor = decoder(
        input_ids=rows.input_ids, position_ids=rows.position_ids, use_cache=False, **attended
    ).last_hidden_state
    return states.reshape(-1, states.shape[-1]).index_select(0, rows.select)


def empty_model(path: Path, *, fp32_head: bool = False, fused_head: bool = False) -> PolicyModel:
    """The model in `path` in float32 on the meta device, without memory for its weights.

    Raises DataError when it is no causal language model that this trainer takes.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.initialization import no_init_weights

    register()

    if not (path / "config.json").is_file():
        raise DataError(f"{path} holds no config.json", fix="point model.path at a Hugging Face model directory")
    refuse_untrainable(config_json(path), str(path))
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)  # it would ask, and wait
        with torch.device("meta"), no_init_weights():
            reads_images = config.model_type in VISION
            made: Any = AutoModelForImageTextToText if reads_images else AutoModelForCausalLM
            packed = {"text_config": PACKED, "vision_config": "sdpa"} if reads_images else PACKED
            like = {"dtype": torch.float32, "attn_implementation": packed}
            if config.get_text_config() is config or not model_files(path):
                lm = made.from_config(config, **like)
            else:  # by its files, or nothing would know how they name the part that is trained
                lm = made.from_pretrained(path, device_map="meta", trust_remote_code=False, **like)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError, AttributeError) as error:  # of any family's code
        raise DataError(f"the model in {path} can't be loaded: {error!r}", fix="check its files") from error
    return PolicyModel(lm, fp32_head, fused_head)


def score_architecture(config: Mapping[str, Any]) -> str:
    """The sequence-classification class of a model's family, for example Qwen3ForSequenceClassification.

    Raises DataError when transformers has none.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as KNOWN

    refuse_unscorable(config, "the start model")
    named = KNOWN.get(str(config.get("model_type")))
    if not isinstance(named, str) or not named.endswith("ForSequenceClassification"):
        raise DataError(
            f"transformers has no sequence-classification model of the family {config.get('model_type')}",
            fix="start a reward model from another family",
        )
    return named


def max_positions(config: Any, attention: Attention) -> int:
    """The longest sequence that a model's positions and attention allow."""
    longest = int(getattr(config, "max_position_embeddings", 0) or 1 << 30)
    window = sliding_window(config)
    return min(longest, window) if window and attention == "flex" else longest  # its blocks have no window


def sliding_window(config: Any) -> int | None:
    """How many tokens a layer with a window looks at; None without such layers."""
    layers = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    return int(window) if window and (not layers or "sliding_attention" in layers) else None


def is_tied(model: PolicyModel) -> bool:
    """Whether the output layer is the input embedding."""
    return bool(getattr(model.lm.config, "tie_word_embeddings", False))


def config_json(path: Path) -> dict[str, Any]:
    """The model's configuration file as it is."""
    loaded: dict[str, Any] = json.loads((path / "config.json").read_text())
    return loaded


def _refuse_unknown(lm: Any) -> None:
    head = lm.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise DataError("the model's output layer is not a plain matrix", fix="use a model without an output bias")
    if not hasattr(lm.get_decoder(), "layers"):
        raise DataError(
            f"models of type {lm.config.model_type} name their transformer blocks otherwise than this trainer expects",
            fix="use a decoder of the Llama, Qwen or Mistral families",
        )


def _zero_dropout(lm: Any) -> None:
    """Without dropout the same weights and tokens have one log-probability, here and in the engine."""
    for module in lm.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if ("dropout" in name or "jitter" in name) and isinstance(value, float):
                setattr(module, name, 0.0)
    for name, value in lm.config.to_dict().items():  # some modules read it there, each time
        if ("dropout" in name or "jitter" in name or name.endswith("pdrop")) and isinstance(value, float):
            setattr(lm.config, name, 0.0)


# ---- Routing replay in the trainer: a token's routers choose the experts that they chose in the engine
# The decoder hands each block the routes of the pass's tokens, so that a repeated forward pass has them, too, on
# whichever thread it runs.


def by_routes(lm: Any) -> RouteShape | None:
    """Let a model's routers obey the routes that its decoder is given; None where it has no experts.

    Before anything else wraps the blocks.
    """
    shape = route_shape(lm)
    if shape is not None:
        for number, block in enumerate(lm.get_decoder().layers):
            block.forward = _routed(block, number, shape)
    return shape


def _routed(block: nn.Module, number: int, shape: RouteShape) -> Callable[..., Any]:
    whole = block.forward

    @functools.wraps(whole)
    def forward(*args: Any, routes: Tensor | None = None, router: Any = None, **kwargs: Any) -> Any:
        if (routes is None and router is None) or number not in shape.routed:
            return whole(*args, **kwargs)
        with RouterMode(shape, None if routes is None else routes[:, number].long()) as mode:
            told = whole(*args, **kwargs)
        if len(mode.chosen) != 1:
            raise BugError(f"layer {number} asked its router {len(mode.chosen)} times: its routes weren't replayed")
        return told if router is None else router(told, mode.logits, mode.chosen[0])

    return forward
