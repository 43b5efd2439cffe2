"""An engine for workflows that answers from a list."""

from __future__ import annotations

import numpy as np
from areal.workflow import GenerationResult, Sampling, TokenSpan
from areal.workflow.rlvr import prompt_of


class Listed:
    """Answers with the next text of a list; scores 1 for `good`."""

    sampling = Sampling()

    def __init__(self, tokenizer, answers, good):
        self.tokenizer = tokenizer
        self.inputs = []
        self._answers = iter(answers)
        self._good = good

    def prompt(self, row):
        return prompt_of(row, self.tokenizer)

    async def agenerate(self, request):
        self.inputs.append(list(request.input_ids))
        text, finish = next(self._answers)
        ids = [*self.tokenizer.encode(text).tolist(), *([1] if finish == "stop" else [])] if text else []
        span = (TokenSpan(0, len(ids), f"{len(self.inputs)}.f1", "s"),) if ids else ()
        reason = "stop" if finish == "stop string" else finish
        return GenerationResult(np.array(ids, "<i4"), np.full(len(ids), -1.0, "<f4"), span, reason)

    async def score(self, *, prompt, completion, prompt_ids, completion_ids, row):
        return float(completion == self._good)
