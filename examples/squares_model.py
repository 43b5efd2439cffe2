"""A small model that reads images: half a million parameters, Qwen3-VL's shape, letters as tokens.

    python examples/squares_model.py models/new-vision

Its weights are random, but for a minute of answers shown to it, after which it counts half of the drawings right. Its
tower for images stays random: what follows it learns to read it.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

_SPECIAL = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
            "<|video_pad|>"]  # fmt: skip
_MOST_STEPS, _BATCH, _ENOUGH = 400, 64, 0.5
_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""
_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 7, "merge_size": 2, "temporal_patch_size": 2,
    "min_pixels": 196, "max_pixels": 12_544, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3,
    "do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True,
}  # fmt: skip


def make(out: Path) -> None:
    """Write model, tokenizer, chat template and the processor's settings to `out`."""
    import torch
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    words = [*_SPECIAL, "\n", *(c for c in map(chr, range(32, 127)) if c in string.printable)]
    ids = {word: number for number, word in enumerate(words)}
    raw = Tokenizer(BPE(vocab=ids, merges=[], unk_token="<unk>"))
    raw.add_special_tokens(_SPECIAL)
    raw.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", unk_token="<unk>", eos_token="<|im_end|>", chat_template=_TEMPLATE
    )
    text = {
        "vocab_size": len(words), "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 3, "head_dim": 24,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
        "bos_token_id": None, "eos_token_id": ids["<|im_end|>"], "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 4],
            "mrope_interleaved": True,  # as released files say: SGLang goes by it, transformers by the family
        },
    }  # fmt: skip
    tower = {
        "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 7, "out_hidden_size": 96,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0],
        "num_position_embeddings": 64,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=tower,
        tie_word_embeddings=True,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    torch.manual_seed(0)
    partial = out.with_name(out.name + ".tmp")
    model = Qwen3VLForConditionalGeneration(config)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR, indent=2) + "\n")
    show_answers(model, tokenizer, partial)
    model.save_pretrained(partial)
    partial.rename(out)


def show_answers(model: Any, tokenizer: Any, path: Path) -> None:
    """Supervised steps on drawings with their numbers, until it counts about half of new ones right."""
    import torch
    from squares import dataset
    from transformers import AutoImageProcessor

    processor, pad = AutoImageProcessor.from_pretrained(path), model.config.image_token_id
    model.model.visual.requires_grad_(False)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=2e-3)
    parts = [{"type": "image"}, {"type": "text", "text": "How many?"}]
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, return_dict=False
    )
    prompt = [token for one in asked for token in [one] * (16 if one == pad else 1)]  # an image is 16 tokens
    rows, right = dataset("warm-up"), 0.0
    for _ in range(_MOST_STEPS):
        batch = [next(rows) for _ in range(_BATCH)]
        seen = processor(images=[row["images"][0] for row in batch], return_tensors="pt")
        ids = torch.tensor([[*prompt, *tokenizer(row["answer"] + tokenizer.eos_token)["input_ids"]] for row in batch])
        logits = model(
            input_ids=ids[:, :-1],
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
            mm_token_type_ids=(ids[:, :-1] == pad).int(),
            logits_to_keep=2,
        ).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -2:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right = 0.9 * right + 0.1 * logits[:, 0].detach().softmax(-1).gather(1, ids[:, -2:-1]).mean().item()
        if right > _ENOUGH:
            return


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "models/new-vision")
    if (out / "config.json").is_file():
        print(f"{out} is there")
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    make(out)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
