"""The code verifier: from an answer and a row to a verdict, or to a fault that says whose it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest
from areal.clients.reward import call_timeout_s
from areal.errors import InfraError
from areal.reward.verifiers.code import CodeSettings, CodeVerifier
from areal.spec.serving import CodeReward
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal_judge.judge.dispatch.executor import StoredSuite
from areal_judge.judge.dispatch.values import Ticket
from areal_judge.judge.values import CaseResult, Flag, Judgement, Options, Scoring, Status, Submission, Suite
from areal_judge.sandbox.values import Tier

ROW = {"prompt": "add 1:", "input_output": {"fn_name": "f", "inputs": [[1], [2]], "outputs": [2, 3]}}
PASSED = Judgement(
    Status.PASSED, 1.0, (CaseResult(0, Status.PASSED), CaseResult(1, Status.PASSED)), cases_total=2, tier=Tier.T3
)
Answer = Callable[[Submission, Suite, Options, Ticket], Judgement]


class Desk:
    """A dispatcher that answers what it is told to."""

    def __init__(self, answer: Answer = lambda *asked: PASSED) -> None:
        self._answer = answer
        self.asked: list[tuple[Submission, Suite, Options, Ticket]] = []
        self.stored: list[StoredSuite] = []

    async def judge(self, submission: Submission, suite: StoredSuite, options: Options, ticket: Ticket) -> Judgement:
        await asyncio.sleep(0)
        self.stored.append(suite)
        self.asked.append((submission, suite.suite, options, ticket))
        return self._answer(*self.asked[-1])


def verifier(desk: Desk, **code: object) -> CodeVerifier:
    return CodeVerifier(desk, CodeSettings("job-1", CodeReward.model_validate(code, by_name=True), 30.0), slots=3)


def item(completion: str = "def f(x): return x + 1", row: object = ROW) -> pb.ScoreItem:
    return pb.ScoreItem(verifier="code", completion=completion, row_json=orjson.dumps(row))


async def one(desk: Desk, given: pb.ScoreItem, **code: object) -> pb.ScoreResult:
    (result,) = await verifier(desk, **code).score([given])
    return result


async def test_a_program_that_passes_has_its_score_its_tier_and_its_cases():
    result = await one(Desk(), item())
    verdict = result.verdict
    assert (verdict.score, verdict.status, verdict.method, verdict.tier) == (1.0, "PASSED", "code", "T3")
    assert verdict.detail == "passed 2/2"
    assert result.wall_s > 0


async def test_the_program_is_what_stands_in_the_last_fence():
    desk = Desk()
    await one(desk, item("<think>\n```python\nno\n```\n</think>So:\n```python\ndef f(x): return 1\n```\nDone."))
    submission, suite, _, _ = desk.asked[0]
    assert submission == Submission("def f(x): return 1\n", "python")
    assert suite.entry_point == "f"


@pytest.mark.parametrize("completion", ["", "  \n", "```rust\nfn f() {}\n```"])
async def test_an_answer_without_a_program_is_zero_and_says_so(completion):
    desk = Desk()
    verdict = (await one(desk, item(completion))).verdict
    assert (verdict.score, verdict.status) == (0.0, "NO_PROGRAM")
    assert desk.asked == []


async def test_what_the_job_says_reaches_the_judge():
    desk = Desk()
    needs = {"needs": ["fork"], "min_tier": "T3"}
    await one(desk, item(), language="python", scoring="fraction", total_seconds=7, isolate_cases=True, **needs)
    _, suite, options, ticket = desk.asked[0]
    assert (options.scoring, options.min_tier, options.total_s) == (Scoring.FRACTION, Tier.T3, 7.0)
    assert not options.reveal
    assert suite.isolate_cases
    assert suite.limits.processes > 1
    assert ticket.tenant == "job-1"
    assert 0 < ticket.deadline - time.time() <= call_timeout_s(30.0)


async def test_a_failed_case_is_named_with_the_signs_of_cheating():
    cases = (CaseResult(0, Status.PASSED), CaseResult(1, Status.WRONG_ANSWER, detail="got 7"))
    found = frozenset({Flag.READS_TESTS, Flag.EXITED_EARLY})
    judged = Judgement(Status.WRONG_ANSWER, 0.0, cases, cases_total=4, flags=found)
    result = await one(Desk(lambda *_: judged), item())
    assert result.verdict.detail == ("passed 1/4; case 1 WRONG_ANSWER: got 7; flags exited_early,reads_tests")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.SANDBOX_ERROR, common.FAULT_KIND_INFRA),
        (Status.REJECTED_OVERLOAD, common.FAULT_KIND_INFRA),
        (Status.DEADLINE_EXCEEDED, common.FAULT_KIND_INFRA),
        (Status.CANCELLED, common.FAULT_KIND_INFRA),
        (Status.GOLD_ERROR, common.FAULT_KIND_DATA),
        (Status.INVALID_REQUEST, common.FAULT_KIND_DATA),
        (Status.REJECTED_TIER, common.FAULT_KIND_CONFIG),
        (Status.SKIPPED, common.FAULT_KIND_BUG),
        (Status.PASSED, common.FAULT_KIND_BUG),  # without a score
    ],
)
async def test_what_says_nothing_about_the_program_is_a_fault_and_never_a_score(status, kind):
    result = await one(Desk(lambda *_: Judgement(status, message="because")), item())
    assert result.WhichOneof("outcome") == "fault"
    assert result.fault.kind == kind
    assert f"{status.value}: because" in result.fault.message


@pytest.mark.parametrize("status", [each for each in Status if each.value.endswith(("_ERROR", "_LIMIT", "_ANSWER"))])
async def test_what_the_program_did_is_a_score(status):
    result = await one(Desk(lambda *_: Judgement(status, 0.0, tier=Tier.T2)), item())
    scored = status not in (Status.GOLD_ERROR, Status.SANDBOX_ERROR)
    assert result.WhichOneof("outcome") == ("verdict" if scored else "fault")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "x"},
        {"input_output": {"fn_name": "f", "inputs": [], "outputs": []}},
        {"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": [None]}},
    ],
)
async def test_a_row_that_could_judge_nothing_is_a_data_fault(row):
    desk = Desk()
    result = await one(desk, item(row=row))
    assert result.fault.kind == common.FAULT_KIND_DATA
    assert result.fault.fix
    assert desk.asked == []


async def test_a_bad_item_costs_no_other_item_its_score():
    def answer(submission: Submission, *_: object) -> Judgement:
        if "broken" in submission.source:
            raise InfraError("the sandbox is gone", fix="wait")
        if "bug" in submission.source:
            raise RuntimeError("oops")
        return PASSED

    given = [item("broken"), item(), item(row=[]), item("bug"), item("pass")]
    results = await verifier(Desk(answer)).score(given)
    kinds = [result.fault.kind if result.HasField("fault") else result.verdict.score for result in results]
    assert kinds == [common.FAULT_KIND_INFRA, 1.0, common.FAULT_KIND_DATA, common.FAULT_KIND_BUG, 1.0]


async def test_a_group_reads_its_row_once():
    desk = Desk()
    scorer = verifier(desk)
    await scorer.score([item(f"def f(x): return x + {n}") for n in range(8)])
    await scorer.score([item()])
    assert len(desk.stored) == 9
    assert len({id(suite) for suite in desk.stored}) == 1


async def test_a_row_stays_unfit_however_often_it_is_asked():
    scorer = verifier(Desk())
    bad = item(row={"prompt": "x"})
    for _ in range(2):
        (result,) = await scorer.score([bad])
        assert result.fault.kind == common.FAULT_KIND_DATA


async def test_whoever_stops_asking_takes_nothing_from_those_who_wait_for_the_same_row():
    desk = Desk()
    scorer = verifier(desk)
    large = {**ROW, "padding": "x" * (1 << 20)}  # read beside the event loop
    first = asyncio.create_task(scorer.score([item(row=large)]))
    second = asyncio.create_task(scorer.score([item("def f(x): return 0", row=large)]))
    await asyncio.sleep(0)
    first.cancel()
    (result,) = await second
    assert result.verdict.score == 1.0
    await scorer.stop()


async def test_the_rows_seen_last_are_kept():
    def row(n: int) -> dict[str, object]:
        return {"input_output": {"fn_name": "f", "inputs": [[n]], "outputs": [n + 1]}}

    desk = Desk()
    scorer = CodeVerifier(desk, CodeSettings("job-1", CodeReward(), 30.0), slots=1, kept_suites=2)
    for n in (1, 2, 1, 3, 1, 2):
        await scorer.score([item(row=row(n))])
    one_a, two_a, one_b, three, one_c, two_b = desk.stored
    assert one_a is one_b is one_c
    assert two_a is not two_b, "3 drove it out"
    assert two_a.digest == two_b.digest != three.digest


def test_the_detail_never_grows_beyond_a_line():
    from areal.reward.verifiers.code import detail_of

    case = CaseResult(0, Status.RUNTIME_ERROR, detail="x" * 5000)
    assert len(detail_of(replace(PASSED, status=Status.RUNTIME_ERROR, cases=(case,)))) == 500
