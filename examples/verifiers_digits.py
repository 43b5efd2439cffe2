"""A taskset of the package verifiers: sort digits. Its rows are the quickstart's.

    areal run examples/verifiers_digits.yaml

Runs in the Python that has verifiers, never in the workers': the job names both.
"""

import json
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["Digits"]


class DigitsData(vf.TaskData):
    answer: str


class DigitsTask(vf.Task[DigitsData]):
    @vf.reward
    async def is_sorted(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class DigitsConfig(vf.TasksetConfig):
    rows: str = "data/digits/heldout.jsonl"


class Digits(vf.Taskset[DigitsTask, DigitsConfig]):
    """What verifiers' own commands read; a job's rows are its dataset's."""

    def load(self):
        for line in Path(self.config.rows).read_text().splitlines():
            yield DigitsTask(DigitsData(**json.loads(line)), self.config.task)
