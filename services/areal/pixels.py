"""Pixels of images as a model's own processor gives them to its tower."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cachetools import LRUCache
from torch import Tensor

from areal.errors import DataError
from areal.values.images import Image, opened

_BYTES = 256 << 20  # of decoded images that are kept


class PixelReader:
    """Decodes images as a model's own processor does. Keeps the newest."""

    def __init__(self, path: Path) -> None:
        """Raises DataError where the model in `path` has no processor."""
        from transformers import AutoImageProcessor

        try:
            auto: Any = AutoImageProcessor
            self._processor = auto.from_pretrained(path, local_files_only=True, backend="pil")  # torchvision's differ
        except (OSError, ValueError, ImportError) as error:
            raise DataError(f"{path} has no image processor: {error}", fix="copy it from the released model") from None
        self._kept: LRUCache[str, tuple[Tensor, Tensor]] = LRUCache(_BYTES, getsizeof=lambda pair: pair[0].nbytes)

    def read(self, images: Sequence[Image]) -> tuple[Tensor, Tensor]:
        """Patches of all images, float32 [patches, values], and the grid of each, int64 [images, 3]."""
        pairs = [self._one(image) for image in images]
        pixels, grids = zip(*pairs, strict=True)
        return torch.cat(pixels), torch.cat(grids)

    def _one(self, image: Image) -> tuple[Tensor, Tensor]:
        if (pair := self._kept.get(image.key)) is None:
            from PIL import ImageOps

            upright = ImageOps.exif_transpose(opened(image.data)).convert("RGB")
            made = self._processor(images=[upright], return_tensors="pt")
            pair = made["pixel_values"].float(), made["image_grid_thw"]
            if pair[0].nbytes <= _BYTES:
                self._kept[image.key] = pair
        return pair
