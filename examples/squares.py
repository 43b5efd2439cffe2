"""A recipe with images: how many squares are drawn? 1.0 for the right number, else 0.0.

areal run examples/squares.yaml
"""

import random

from PIL import Image, ImageDraw

_ROWS = {"train": 2000, "evaluation": 200, "warm-up": 100_000}


def dataset(split):
    """Rows of one drawing each, with 1 to 5 squares that don't touch."""
    draws = random.Random(split)
    for _ in range(_ROWS[split]):
        count = draws.randint(1, 5)
        image = Image.new("RGB", (56, 56), "black")
        for place in draws.sample(range(16), count):
            left, top = 14 * (place % 4) + draws.randint(1, 4), 14 * (place // 4) + draws.randint(1, 4)
            ImageDraw.Draw(image).rectangle((left, top, left + 7, top + 7), fill="white")
        yield {"images": [image], "prompt": "<image>How many?", "answer": str(count)}


def reward(prompt, completions, prompt_ids, completion_ids, *, answer, **row):
    """`answer` is the row's column."""
    return float(completions.strip() == answer)
