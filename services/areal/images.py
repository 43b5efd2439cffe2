"""Images in prompts: how many tokens each takes, at which positions, and how they travel.

An image is its file's bytes, everywhere. In a message's text a mark stands for it, in a dataset's row a data URI, on the
wire an attachment; in a prompt the model's placeholder token, once for each vector that its tower makes of the image.
That number follows from the image's width and height alone, so only who computes the vectors decodes pixels.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from areal.errors import DataError
from areal.values.generation import Ids, as_ids

if TYPE_CHECKING:
    from torch import Tensor

IMAGE = "image"
"""Kind of an attachment: an image of its sequence, in the order in which they stand there."""
MARK = "\ufffc"
"""Stands for an image in a message's text."""
MOST_BYTES = 8 << 20  # of an image's file

_PIXEL_BYTES = 256 << 20  # of decoded images that are kept
_THINNEST = 200  # times as long as wide


@dataclass(frozen=True)
class Image:
    """The bytes of an image's file."""

    data: bytes

    @cached_property
    def key(self) -> str:
        """sha256 of the bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, by the file's header. Raises DataError where it is no image."""
        opened = _opened(self.data)
        width, height = opened.size
        return (height, width) if opened.getexif().get(0x0112, 1) > 4 else (width, height)  # it lies on its side

    @property
    def uri(self) -> str:
        """As a data URI. Raises DataError where it is no image."""
        return f"data:{_opened(self.data).get_format_mimetype()};base64,{base64.b64encode(self.data).decode()}"


def _opened(data: bytes) -> Any:
    import PIL.Image

    try:
        return PIL.Image.open(BytesIO(data))
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise DataError(f"{len(data)} bytes are no image: {error}", fix="use PNG, JPEG, WebP or GIF") from None


def image_of(given: object, folder: Path | None = None) -> Image:
    """The image that a row or a request names: bytes, a data URI, `{"bytes": …}` or `{"path": …}`, or Pillow's object.

    With a `folder`, a path in it is read, too. Raises DataError for anything else, and for more than `MOST_BYTES`.
    """
    if isinstance(given, Mapping):
        given = next((given[name] for name in ("bytes", "url", "path", "image") if given.get(name) is not None), None)
    if isinstance(given, str):
        head, comma, coded = given.partition(",")
        if comma and head.startswith("data:") and head.endswith(";base64"):
            try:
                given = base64.b64decode(coded, validate=True)
            except binascii.Error as error:
                raise DataError(f"an image's data URI is no base64: {error}", fix="encode its file anew") from None
        elif folder is not None and "://" not in given:
            try:
                given = (folder / given).read_bytes()
            except (OSError, ValueError) as error:
                raise DataError(f"cannot read the image {given}: {error}", fix=f"paths begin in {folder}") from None
        else:
            raise DataError(
                f"an image is {given[:80]!r}: nothing is fetched here", fix="give data:image/png;base64,… instead"
            )
    elif hasattr(given, "save") and hasattr(given, "getexif"):  # Pillow's, as `datasets` decodes a column
        drawn = BytesIO()
        given.save(drawn, "PNG")
        given = drawn.getvalue()
    if not isinstance(given, bytes):
        raise DataError(f"an image is a {type(given).__name__}", fix="give its file's bytes, a data URI or a path")
    if len(given) > MOST_BYTES:
        raise DataError(f"an image has {len(given):,} bytes, {MOST_BYTES:,} at most", fix="make it smaller")
    return Image(given)


@dataclass(frozen=True)
class ImageShape:
    """How a model's processor cuts images: into patches, `merge` by `merge` of which become one token."""

    token: int  # the placeholder
    patch: int  # pixels
    merge: int
    least: int  # pixels of an image, which is scaled to a size between
    most: int

    @classmethod
    def from_dir(cls, path: Path, config: Mapping[str, Any]) -> ImageShape | None:
        """Of a model's directory and its config.json; None for a model that reads no images. Raises DataError."""
        from areal.spec.model_families import VISION  # loads what understands jobs: not in a probe

        if config.get("model_type") not in VISION:
            return None
        try:
            named = [path / "preprocessor_config.json", path / "processor_config.json"]
            told = [json.loads(file.read_text()) for file in named if file.is_file()]
            found = {**told[0], **told[0].get("image_processor", {})}
            size = found.get("size") or {}
            least, most = found.get("min_pixels"), found.get("max_pixels")
            return cls(
                int(config["image_token_id"]),
                int(found["patch_size"]),
                int(found["merge_size"]),
                int(size["shortest_edge"] if least is None else least),
                int(size["longest_edge"] if most is None else most),
            )
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            words = f"{path} reads images, but lacks a usable preprocessor_config.json: {error!r}"
            raise DataError(words, fix="copy it from the released model") from None

    def grid(self, image: Image) -> tuple[int, int, int]:
        """Patches of an image: in time, down, across. Raises DataError for one that no processor takes."""
        (width, height), unit = image.size, self.patch * self.merge
        if max(width, height) > _THINNEST * min(width, height):
            raise DataError(f"an image of {width} × {height} pixels is too thin", fix=f"at most {_THINNEST} times")
        down, across = (round(side / unit) * unit for side in (height, width))
        if down * across > self.most:
            by = math.sqrt(height * width / self.most)
            down, across = (max(unit, math.floor(side / by / unit) * unit) for side in (height, width))
        elif down * across < self.least:
            by = math.sqrt(self.least / (height * width))
            down, across = (math.ceil(side * by / unit) * unit for side in (height, width))
        return 1, down // self.patch, across // self.patch

    def tokens(self, image: Image) -> int:
        """Tokens that stand for an image."""
        return math.prod(self.grid(image)) // self.merge**2

    def expanded(self, ids: Ids, images: Sequence[Image]) -> Ids:
        """A prompt with one placeholder for each image, with as many as each takes. Raises DataError."""
        counts = np.ones(len(ids), np.int64)
        if (places := np.flatnonzero(ids == self.token)).size != len(images):
            words = f"a prompt has {places.size} placeholders for {len(images)} images"
            raise DataError(words, fix="use the model's own chat template and tokenizer")
        counts[places] = [self.tokens(image) for image in images]
        return as_ids(np.repeat(ids, counts))

    def collapsed(self, ids: Ids, images: Sequence[Image]) -> Ids:
        """`expanded` undone."""
        kept = np.ones(len(ids), np.bool_)
        for begin, image in zip(self.begins(ids, images), images, strict=True):
            kept[begin + 1 : begin + self.tokens(image)] = False
        return as_ids(ids[kept])

    def begins(self, ids: Ids | NDArray[np.int64], images: Sequence[Image]) -> list[int]:
        """The first token of each image. Raises DataError where the placeholders are not those of these images."""
        places, counts = np.flatnonzero(np.asarray(ids) == self.token), [self.tokens(image) for image in images]
        if places.size != sum(counts):
            words = f"a sequence has {places.size} placeholders, its {len(images)} images take {sum(counts)}"
            raise DataError(words, fix="leave samples out in which a model wrote a placeholder")
        return [int(places[begin]) for begin in np.cumsum([0, *counts])[:-1]]

    def positions(self, ids: Ids | NDArray[np.int64], images: Sequence[Image]) -> NDArray[np.int64]:
        """Positions in time, down and across of each token, [3, tokens]: an image's are those of its vectors, and text
        goes on behind its longest side. Raises DataError as `begins` does."""
        found = np.empty((3, len(ids)), np.int64)
        done = position = 0
        for begin, image in zip(self.begins(ids, images), images, strict=True):
            time, down, across = self.grid(image)
            sides = (time, down // self.merge, across // self.merge)
            found[:, done:begin] = np.arange(position, position + begin - done)
            position, done = position + begin - done, begin + math.prod(sides)
            found[:, begin:done] = position + np.indices(sides).reshape(3, -1)
            position += max(sides)
        found[:, done:] = np.arange(position, position + len(ids) - done)
        return found


class PixelReader:
    """Decodes images as a model's own processor does. Keeps the newest."""

    def __init__(self, path: Path) -> None:
        """Raises DataError where the model in `path` has no processor."""
        from cachetools import LRUCache
        from transformers import AutoImageProcessor

        try:
            self._processor: Any = AutoImageProcessor.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{path} has no image processor: {error}", fix="copy it from the released model") from None
        self._kept: LRUCache[str, tuple[Tensor, Tensor]] = LRUCache(
            _PIXEL_BYTES, getsizeof=lambda pair: pair[0].nbytes
        )

    def read(self, images: Sequence[Image]) -> tuple[Tensor, Tensor]:
        """Patches of all images, float32 [patches, values], and the grid of each, int64 [images, 3]."""
        import torch

        pairs = [self._one(image) for image in images]
        pixels, grids = zip(*pairs, strict=True)
        return torch.cat(pixels), torch.cat(grids)

    def _one(self, image: Image) -> tuple[Tensor, Tensor]:
        if (pair := self._kept.get(image.key)) is None:
            from PIL import ImageOps

            upright = ImageOps.exif_transpose(_opened(image.data)).convert("RGB")
            made = self._processor(images=[upright], return_tensors="pt")
            pair = made["pixel_values"].float(), made["image_grid_thw"]
            if pair[0].nbytes <= _PIXEL_BYTES:
                self._kept[image.key] = pair
        return pair
