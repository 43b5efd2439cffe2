"""A reward for generated tasks: the last number of the answer is right, or at least there is one.

areal run examples/smollm2.yaml
"""

from __future__ import annotations

import re
from typing import Any


def reward(prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> float:
    """1 when the last number is the task's answer, 0.1 for another number, 0 without one."""
    numbers = re.findall(r"-?\d+", completions)
    if not numbers:
        return 0.0
    return 1.0 if numbers[-1] == row["answer"] else 0.1
