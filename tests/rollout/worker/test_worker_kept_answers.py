"""What a failed try drew is drawn once: the next try is given it."""

from __future__ import annotations

import numpy as np
import pytest
from areal.errors import InfraError
from areal.rollout.worker.kept_answers import DrawnAnswer, EarlierTry, KeptAnswers
from areal.values.generation import as_ids
from areal.workflow import Episode, GenerationRequest, GenerationResult, RolloutWorkflow, Sampling, Sequence, TokenSpan
from support.scripted_controller import lease
from support.worker_parts import ROW

IDS, SAMPLING = as_ids([5, 6, 7]), Sampling()


def drawn(seed: int = 1, *, tokens: int = 2, version: int = 3) -> DrawnAnswer:
    spans = (TokenSpan(0, tokens, f"{version}.f1", "s"),)
    result = GenerationResult(as_ids([9] * tokens), np.full(tokens, -0.5, "<f4"), spans, "stop")
    return DrawnAnswer(seed, IDS, SAMPLING, result)


def test_an_answer_is_taken_up_once_and_only_for_the_same_question() -> None:
    earlier = EarlierTry(1, [drawn()])
    assert earlier.take(2, IDS, SAMPLING, 0) is None
    assert earlier.take(1, as_ids([5, 6, 8]), SAMPLING, 0) is None
    assert earlier.take(1, IDS, Sampling(temperature=0.5), 0) is None
    assert earlier.take(1, IDS, SAMPLING, 4) is None, "too old by now"
    assert earlier.take(1, IDS, SAMPLING, 3) is not None
    assert earlier.take(1, IDS, SAMPLING, 3) is None


def test_a_third_try_has_what_the_second_did_not_come_to() -> None:
    earlier = EarlierTry(1, [drawn(1), drawn(2)])
    first = earlier.take(1, IDS, SAMPLING, 0)
    assert first is not None
    again = earlier.with_answers([first])
    assert again.attempt == 1
    assert again.take(1, IDS, SAMPLING, 0) is not None
    assert again.take(2, IDS, SAMPLING, 0) is not None


def test_what_is_kept_is_bounded_and_the_oldest_goes_first() -> None:
    kept = KeptAnswers(most_tokens=10)
    for sample in range(3):
        kept.keep(sample, EarlierTry(1, [drawn()]))  # five ids each
    assert kept.sampled == 2 * EarlierTry(1, [drawn()]).sampled > 0
    assert [kept.take(sample) is None for sample in range(3)] == [True, False, False]
    kept.keep(3, EarlierTry(1, [drawn(tokens=8)]))
    assert kept.take(3) is None
    kept.keep(4, EarlierTry(1, []))
    assert kept.take(4) is None


@pytest.mark.component
async def test_a_retry_takes_the_answers_of_the_try_before_and_samples_what_follows(bench) -> None:
    class Breaks(RolloutWorkflow):
        """Two turns; its environment is lost after the first, the first time."""

        tries = 0

        async def arun_episode(self, engine, row):
            type(self).tries += 1
            prompt = engine.prompt(row).ids
            first = await engine.agenerate(GenerationRequest(prompt))
            if self.tries == 1:
                raise InfraError("the box was lost")
            second = await engine.agenerate(GenerationRequest(as_ids([*prompt, *first.output_ids, 5])))
            return Episode(
                [Sequence.of(prompt, first, 1.0), Sequence.of(as_ids([*prompt, *first.output_ids, 5]), second, 1.0)]
            )

    work = await bench(workflow=Breaks).start()
    work.controller.send(leases=[lease(0, [0], ROW)])
    await work.controller.until(lambda: work.controller.failures)
    work.controller.send(leases=[lease(0, [0], ROW, attempt=2)])
    await work.controller.until(lambda: work.controller.done)
    ((_, sample),) = (await work.stored()).items()
    starts = work.agents[0].starts
    assert [len(start.token_ids) // 4 > 4 for start in starts] == [False, True], "the first answer was sampled once"
    assert {start.key.attempt for start in starts} == {1}, "its tokens are of one attempt"
    assert len(sample.sequences) == 2
    assert work.controller.done[0].key.attempt == 2
    spans = [span for sequence in sample.sequences for span in sequence.spans]
    assert work.controller.done[0].sampled == sum(span.end - span.start for span in spans)
