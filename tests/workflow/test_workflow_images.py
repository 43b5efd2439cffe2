"""Images of rows: in every shape that public datasets have, they become the placeholders that the model reads."""

from __future__ import annotations

import base64
import json
from io import BytesIO
from pathlib import Path

import numpy as np
import orjson
import PIL.Image
import pytest
from areal.admit.rows import RowMeasure
from areal.data.adapters import read_rows
from areal.data.prepare import prepare
from areal.data.source import HuggingFaceSource, JsonlSource, RecipeSource
from areal.errors import DataError
from areal.image_shape import ImageShape
from areal.pixels import PixelReader
from areal.spec.load import load_job
from areal.values.images import MARK, Image, image_of
from areal.workflow.rlvr import prompt_of
from areal.workflow.rows.forms import prompt_row
from areal.workflow.tokenizer import Tokenizer
from support.chat_tokenizer import write_chat_tokenizer
from support.tiny_vision import drawing, processor
from support.vision_tokenizer import write_vision_tokenizer
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_tokenizer(tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_dir(folder)


ONE, TWO = drawing(1), drawing(2, 56, 28)
SAID = "What is <|image_pad|> here?"  # a control string that a row says is text
ROWS = {
    "a mark in a text, a column of structs": {
        "problem": f"<image>{SAID}", "images": [{"bytes": ONE.data, "path": None}]
    },
    "a column of one": {"question": SAID, "image": ONE.uri},
    "parts of transformers": {
        "messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": SAID}]}],
        "images": [ONE.uri],
    },
    "OpenAI's parts": {
        "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": ONE.uri}}, {"type": "text", "text": SAID}
        ]}],
    },
    "parts of Responses": {
        "messages": [{"role": "user", "content": [
            {"type": "input_image", "image_url": ONE.uri}, {"type": "input_text", "text": SAID}
        ]}],
    },
    "Anthropic's parts": {
        "messages": [{"role": "user", "content": [
            {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": base64.b64encode(ONE.data).decode()
            }},
            {"type": "text", "text": SAID},
        ]}],
    },
    "marks in ShareGPT's turns": {
        "conversations": [{"from": "human", "value": f"<image>{SAID}"}, {"from": "gpt", "value": "7"}],
        "images": [ONE.uri],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_every_shape_become_the_template_s_own_prompt(folder, tokenizer, name):
    row = ROWS[name]
    if "conversations" in row:
        row = {**row, "conversations": row["conversations"][:1]}
    prompt = prompt_of(row, tokenizer)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is # here?"}]}],
        tokenize=True, add_generation_prompt=True, return_dict=False,
    )  # fmt: skip
    shape = tokenizer.image_shape
    (place,) = [place for place, token in enumerate(theirs) if token == shape.token]
    said = Tokenizer.from_dir(folder).content._plain.encode("<|image_pad|>", add_special_tokens=False).ids
    (hash_,) = tokenizer.encode("#", special=False).tolist()
    expected = []
    for token in theirs:
        expected += [shape.token] * shape.tokens(ONE) if token == shape.token else said if token == hash_ else [token]
    assert prompt.ids.tolist() == expected
    assert prompt.images == (ONE,)
    assert place > 0
    assert MARK in prompt.text


def test_two_images_of_other_sizes_stand_in_their_order(tokenizer):
    row = {"prompt": "first <image> then <image>?", "images": [ONE.uri, TWO.uri]}
    prompt, shape = prompt_of(row, tokenizer), tokenizer.image_shape
    assert prompt.images == (ONE, TWO)
    assert shape.begins(prompt.ids, prompt.images)[1] > shape.begins(prompt.ids, prompt.images)[0]
    assert (prompt.ids == shape.token).sum() == shape.tokens(ONE) + shape.tokens(TWO) == 4 + 8
    assert shape.expanded(shape.collapsed(prompt.ids, prompt.images), prompt.images).tolist() == prompt.ids.tolist()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "<image> <image>", "images": [ONE.uri]}, "2 times <image> for 1 images"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "a part is an image, and the row has none"),
        ({"prompt": "q", "images": ["https://example.com/a.png"]}, "nothing is fetched here"),
        ({"prompt": "q", "images": ["data:image/png;base64,AAAA"]}, "no image"),
        ({"prompt": "q", "videos": ["a.mp4"]}, "column videos is not empty"),
        ({"messages": [{"role": "user", "content": f"q {MARK}"}]}, "stands for images here"),
        ({"prompt": "q", "image": 7}, "an image is a int"),
    ],
)
def test_what_can_t_be_read_is_told(tokenizer, row, why):
    with pytest.raises(DataError, match=why):
        prompt_of(row, tokenizer)


def test_a_model_of_text_reads_no_images(tmp_path):
    plain = Tokenizer.from_dir(write_chat_tokenizer(tmp_path))
    assert plain.image_shape is None
    with pytest.raises(DataError, match="reads text only"):
        prompt_of({"prompt": "q", "images": [ONE.uri]}, plain)
    with pytest.raises(DataError, match="reads text only"):
        prompt_row({"messages": [{"role": "user", "content": [{"type": "image", "image": ONE.uri}]}]})


def test_a_template_without_images_and_a_model_without_settings_are_refused(tmp_path):
    path = write_chat_tokenizer(tmp_path)
    config = {"model_type": "qwen2_5_vl", "image_token_id": 7, "vocab_size": 400}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"lacks a usable preprocessor_config\.json"):
        Tokenizer.from_dir(path)
    processor(path)
    with pytest.raises(DataError, match="writes no placeholder for an image"):
        prompt_of({"prompt": "q", "images": [ONE.uri]}, Tokenizer.from_dir(path))


@pytest.mark.parametrize("form", ["jsonl", "parquet", "columns"])
def test_files_and_bytes_of_a_dataset_become_data_uris(tmp_path, tokenizer, form):
    (tmp_path / "seen").mkdir()
    (tmp_path / "seen" / "one.png").write_bytes(ONE.data)
    if form == "jsonl":
        rows = [{"prompt": "<image>q", "images": ["seen/one.png"]}]
        part = {"role": "user", "content": [{"type": "image", "image": "seen/one.png"}, {"type": "text", "text": "q"}]}
        rows.append({"messages": [part]})
        (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        source = JsonlSource(tmp_path / "rows.jsonl")
    else:
        import pyarrow
        from pyarrow import parquet

        cell = {"bytes": ONE.data, "path": None} if form == "parquet" else ONE.data
        table = pyarrow.Table.from_pylist([{"prompt": "<image>q", "images": [cell]}])
        parquet.write_table(table, tmp_path / "rows.parquet")
        source = HuggingFaceSource(str(tmp_path / "rows.parquet"))
    prepared = prepare(source, tmp_path / "snapshot")
    for row in prepared:
        assert prompt_of(row, tokenizer).images == (ONE,)
    assert [prompt_of(row, tokenizer).images for _, row, _ in read_rows(source)] == [(ONE,)] * len(prepared)


def test_pillow_s_objects_of_a_recipe_become_data_uris_and_other_columns_stay(tmp_path, tokenizer):
    (tmp_path / "recipe.py").write_text(
        "import numpy\nimport PIL.Image\n\n\ndef dataset(split):\n"
        "    yield {'prompt': '<image>q', 'images': [PIL.Image.new('RGB', (28, 28))], 'path': 'a.png'}\n"
        "    yield {'prompt': 'q', 'image': numpy.zeros((2, 2)), 'images': None}\n"
    )
    rows = [row for _, row, _ in read_rows(RecipeSource(tmp_path / "recipe.py", "train"))]
    assert rows[0]["images"][0].startswith("data:image/png;base64,")
    assert rows[0]["path"] == "a.png"
    assert rows[1]["image"].shape == (2, 2)
    assert [size for image in prompt_of(rows[0], tokenizer).images for size in image.size] == [28, 28]


def test_sizes_grids_and_positions_are_the_processor_s_own(tmp_path):
    from transformers import AutoModelForImageTextToText
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    (tmp_path / "config.json").write_text('{"model_type": "qwen3_vl"}')
    sizes = [(56, 56), (300, 200), (37, 911), (400, 200), (20, 20), (15, 29), (1300, 900)]
    for settings in (
        {"patch_size": 14, "min_pixels": 3136, "max_pixels": 1_003_520},
        {"patch_size": 16, "min_pixels": None, "max_pixels": None,
         "size": {"shortest_edge": 65_536, "longest_edge": 1_777_216}},
        {"patch_size": 7, "min_pixels": 196, "max_pixels": 10_000},
    ):  # fmt: skip
        processor(tmp_path, **settings)
        shape = ImageShape.from_dir(tmp_path, {"model_type": "qwen3_vl", "image_token_id": 5})
        reader = PixelReader(tmp_path)
        for width, height in sizes:
            image = drawing(0, width, height)
            pixels, grids = reader.read([image])
            assert grids.tolist() == [list(shape.grid(image))], (settings, width, height)
            assert len(pixels) == shape.tokens(image) * shape.merge**2
    images = (drawing(0, 56, 56), drawing(1, 28, 42))
    ids = shape.expanded(np.array([1, 5, 2, 3, 5, 4, 4], np.int32), images)
    with_meta = CONFIG_MAPPING["qwen3_vl"](image_token_id=5)
    import torch

    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(with_meta)
    grids = torch.tensor([shape.grid(image) for image in images])
    given = torch.from_numpy(ids.astype(np.int64))[None]
    theirs, delta = model.model.get_rope_index(given, (given == 5).int(), image_grid_thw=grids)
    ours = shape.positions(ids, images)
    np.testing.assert_array_equal(ours, theirs[:, 0].numpy())
    assert int(ours[0, -1]) + 1 - len(ids) == int(delta)


def test_a_photo_that_lies_on_its_side_is_read_upright():
    told = BytesIO()
    turned = PIL.Image.Exif()
    turned[0x0112] = 6
    PIL.Image.new("RGB", (40, 20)).save(told, "JPEG", exif=turned)
    assert Image(told.getvalue()).size == (20, 40)
    assert image_of(PIL.Image.new("RGB", (8, 4))).size == (8, 4)


def test_the_bytes_of_a_row_s_images_are_measured(folder):
    job = load_job(Path(__file__).parents[2] / "examples/squares.yaml", ["rollout.maxSampleTokens=400"])
    measure = RowMeasure(job, Tokenizer.from_dir(folder))
    measure.measure("row 1", {"prompt": "<image>q", "images": [ONE.uri]})
    measure.measure("row 2", {"prompt": "q"})
    assert measure.image_bytes == len(ONE.data)


def test_a_file_that_broke_off_is_refused_before_anybody_computes_with_it(tokenizer):
    whole = drawing(5, 56, 56)
    broken = f"data:image/png;base64,{base64.b64encode(whole.data[: len(whole.data) // 2]).decode()}"
    with pytest.raises(DataError, match="is broken"):
        prompt_of({"prompt": "q", "images": [broken]}, tokenizer)


def test_a_text_that_is_called_like_a_file_stays_a_text(tmp_path):
    (tmp_path / "one.png").write_bytes(ONE.data)
    rows = [{"prompt": "one.png", "messages": [{"role": "user", "content": "one.png"}], "image": "one.png"}]
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    (read,) = [row for _, row, _ in read_rows(JsonlSource(tmp_path / "rows.jsonl"))]
    assert (read["prompt"], read["messages"]) == (rows[0]["prompt"], rows[0]["messages"])
    assert read["image"] == ONE.uri
