"""Tiny models of images and text, and images for them."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from areal.image_shape import ImageShape
from areal.spec.model_families import VISION
from areal.v1 import common_pb2 as common
from areal.values.images import IMAGE, Image
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

WORDS = 24  # ids that texts have; the placeholder is not one of them
PLACEHOLDER = 25
_TOWERS = {
    "qwen2_vl": {"embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "in_chans": 3},
    "qwen2_5_vl": {"hidden_size": 32, "out_hidden_size": 64, "window_size": 0, "fullatt_block_indexes": [1]},
}
_CONTROL = ("image_pad", "video_pad", "vision_start", "vision_end")
_TEMPLATE = (
    "{%- for message in messages -%}{%- if message.content is string -%}{{ message.content }}{%- else -%}"
    "{%- for part in message.content -%}{%- if part.type == 'image' -%}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}{%- endfor -%}"
)


def vision_model(
    path: Path, family: str = "qwen3_vl", *, scale: float = 3.0, seed: int = 4, patch: int = 7, **text: Any
) -> Any:
    """A model with large random weights, in the layout of released files, with a processor of patches of 7 pixels.

    SGLang takes patches of other sizes than 14, the released one, for vectors of a Qwen2-VL's or Qwen2.5-VL's tower.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 2, 2]}
    if family.startswith("qwen3"):
        rope["mrope_interleaved"] = True  # as released files say: SGLang goes by it, transformers by the family
    language = {
        "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "rope_parameters": rope, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1, "mlp_only_layers": [], **text,
    }  # fmt: skip
    deep = {"hidden_size": 32, "out_hidden_size": 64, "deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    tower = {
        "depth": 2, "intermediate_size": 64, "num_heads": 2, "spatial_merge_size": 2, "temporal_patch_size": 2,
        **_TOWERS.get(family, deep), "patch_size": patch,
    }  # fmt: skip
    if family == "qwen3_vl_moe":  # three, as released: SGLang takes no other number of it
        tower |= {"depth": 3, "deepstack_visual_indexes": [0, 1, 2]}
    if "window_size" in tower:
        tower["window_size"] = 4 * patch
    ids = {"image_token_id": PLACEHOLDER, "video_token_id": 26, "vision_start_token_id": 27, "vision_end_token_id": 28}
    config = AutoConfig.for_model(family, text_config=language, vision_config=tower, tie_word_embeddings=False, **ids)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn_like(tensor) * 0.1 if tensor.abs().max() == 0 else tensor * scale)
        model.lm_head.weight.mul_(4)[PLACEHOLDER] = 0  # seldom written: it ends an answer
    model.save_pretrained(path)
    if family == "qwen3_vl_moe":
        turn_experts(path)  # as released; SGLang reads them so alone
    processor(path, patch_size=patch)
    return model


def turn_experts(path: Path) -> None:
    """Write a model's experts with their last two dimensions the other way round."""
    file = path / "model.safetensors"
    tensors = load_file(file)
    experts = {name: each.transpose(1, 2).contiguous() for name, each in tensors.items() if ".mlp.experts." in name}
    save_file(tensors | experts, file, {"format": "pt"})


def vision_words(path: Path, vocab: int) -> None:
    """Write a tokenizer of a word for each id, the four of images among them, and a chat template for SGLang's start.

    A word's text ends where the next begins, as of released tokenizers: SGLang looks for images in the prompt's text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *(f"w{number}" for number in range(2, vocab))]
    words[PLACEHOLDER : PLACEHOLDER + 4] = seen = [f"<|{word}|>" for word in _CONTROL]
    raw = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.WhitespaceSplit(), decoders.Fuse()
    raw.add_special_tokens(["<pad>", "<eos>", *seen])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", chat_template=_TEMPLATE)
    fast.save_pretrained(path)


def processor(path: Path, **sizes: int) -> None:
    """Write the preprocessor_config.json of a model of patches of 7 pixels, two by two of them a token."""
    settings = {
        "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 7, "merge_size": 2, "temporal_patch_size": 2,
        "min_pixels": 196, "max_pixels": 10_000, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3,
        "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True,
        **sizes,
    }  # fmt: skip
    (path / "preprocessor_config.json").write_text(json.dumps(settings))


def drawing(seed: int, width: int = 28, height: int = 28, form: str = "PNG") -> Image:
    """An image of coarse random squares."""
    coarse = np.random.default_rng(seed).integers(0, 255, (4, 4, 3), np.uint8)
    told = BytesIO()
    PIL.Image.fromarray(coarse).resize((width, height), PIL.Image.Resampling.NEAREST).save(told, form)
    return Image(told.getvalue())


def asked(shape: ImageShape, random: np.random.Generator, *images: Image) -> NDArray[np.int32]:
    """A prompt: words, and each image between words."""
    parts = [random.integers(1, WORDS, 3).tolist()]
    for _ in images:
        parts += [[27, PLACEHOLDER, 28], random.integers(1, WORDS, 2).tolist()]
    return shape.expanded(np.array([token for part in parts for token in part], np.int32), images)


def scored_alone(model: Any, ids: NDArray[Any], reader: Any, images: tuple[Image, ...]) -> torch.Tensor:
    """Log-probabilities of tokens 1… of one sequence, by Hugging Face's own positions and its whole forward pass."""
    targets = torch.from_numpy(np.asarray(ids, np.int64))[None, 1:, None]
    given = torch.from_numpy(np.asarray(ids, np.int64))[None, :-1]
    more: dict[str, Any] = {}
    if images:
        pixels, grids = reader.read(images)
        kinds = (given == PLACEHOLDER).int()
        more = {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": kinds}
    model.model.rope_deltas = None
    with torch.no_grad():
        logits = model(input_ids=given, use_cache=False, **more).logits[0]
    return torch.log_softmax(logits.float(), -1).gather(1, targets[0])[:, 0]


def shape_of(path: Path) -> ImageShape:
    shape = ImageShape.from_dir(path, json.loads((path / "config.json").read_text()))
    assert shape is not None
    return shape


def sample(group: int, index: int, prompt: np.ndarray, images: tuple[Image, ...]) -> common.Sample:
    """A prompt and a random answer."""
    answer = np.random.default_rng((group, index)).integers(1, WORDS, 3 + index)
    ids = np.concatenate([prompt, answer]).astype("<i4")
    mask = (np.arange(len(ids)) >= len(prompt)).astype("u1")
    sequence = common.TokenSequence(
        token_ids=ids.tobytes(),
        logprobs=np.where(mask, -3.0, 0.0).astype("<f4").tobytes(),
        loss_mask=mask.tobytes(),
        spans=[common.Span(start=len(prompt), end=len(ids), policy_id="0.f1", server_id="s")],
        attachments=[common.Attachment(kind=IMAGE, data=image.data) for image in images],
    )
    return common.Sample(key=common.SampleKey(group=group, index=index, attempt=1), sequences=[sequence])


def samples_of(shape: ImageShape) -> list[common.Sample]:
    """Groups that share a prompt with one image, with two of other sizes, with none; and one whose images differ."""
    random, made = np.random.default_rng(1), []
    for group, images in enumerate([(drawing(1),), (drawing(2, 56, 14), drawing(1)), ()]):
        prompt = asked(shape, random, *images)
        made += [sample(group, index, prompt, images) for index in range(3)]
    prompt = asked(shape, random, drawing(3))
    return [*made, *(sample(3, index, prompt, (drawing(3 + index % 2),)) for index in range(4))]


FAMILIES = sorted(VISION)
