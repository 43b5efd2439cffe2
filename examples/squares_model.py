"""A small model with random weights that reads images: half a million parameters, Qwen3-VL's shape, letters as tokens.

python examples/squares_model.py models/new-vision
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

_SPECIAL = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
            "<|video_pad|>"]  # fmt: skip
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
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 4]},
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
    Qwen3VLForConditionalGeneration(config).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR, indent=2) + "\n")
    partial.rename(out)


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
