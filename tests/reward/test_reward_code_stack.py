"""The code verifier over the real sandbox: what programs do becomes verdicts, and what befalls the machine doesn't."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
from areal.observe.metrics import RoleMetrics
from areal.reward.verifiers.code import CodeSettings, CodeVerifier
from areal.spec.serving import CodeReward
from areal.v1 import common_pb2 as common
from areal.v1 import reward_pb2 as pb
from areal_judge.judge.stack import CodeStack, StackSettings, code_stack

pytestmark = pytest.mark.component

CALLS = {"input_output": {"fn_name": "f", "inputs": [[1], [2], [3]], "outputs": [2, 3, 4]}}
STDIO = {"suite": {"kind": "stdio", "cases": [{"stdin": "1 2\n", "expected": "3\n"}]}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[CodeStack]:
    async def changed(ready: bool) -> None:
        assert ready

    async with code_stack(StackSettings(slots=2, languages=("python",)), RoleMetrics("reward", "t"), changed) as made:
        yield made


def verifier(stack: CodeStack, **code: object) -> CodeVerifier:
    settings = CodeSettings("job", CodeReward.model_validate(code, by_name=True), 30.0)
    return CodeVerifier(stack.dispatcher, settings, slots=2)


def item(completion: str, row: object = CALLS) -> pb.ScoreItem:
    return pb.ScoreItem(verifier="code", completion=completion, row_json=orjson.dumps(row))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("completion", "row", "status", "score"),
    [
        ("def f(x): return x + 1", CALLS, "PASSED", 1.0),
        ("f = lambda x: x + 1", CALLS, "PASSED", 1.0),
        ("Here:\n```python\nprint(sum(map(int, input().split())))\n```", STDIO, "PASSED", 1.0),
        ("def f(x): return x + (x < 3)", CALLS, "WRONG_ANSWER", 0.0),
        ("def f(x): return x +", CALLS, "COMPILE_ERROR", 0.0),
        ("def f(x): return x // 0", CALLS, "RUNTIME_ERROR", 0.0),
        ("def g(x): return x + 1", CALLS, "RUNTIME_ERROR", 0.0),
        ("class E(int):\n    __eq__ = lambda *_: True\ndef f(x): return E()", CALLS, "BAD_RESULT_TYPE", 0.0),
        ("import os\nos._exit(0)", CALLS, "PROTOCOL_VIOLATION", 0.0),
    ],
)
async def test_what_a_program_did_is_its_verdict(stack, completion, row, status, score):
    (result,) = await verifier(stack).score([item(completion, row)])
    verdict = result.verdict
    assert (verdict.status, verdict.score, verdict.method) == (status, score, "code")
    assert verdict.tier == stack.sandbox.powers.tier.name
    assert verdict.tier in ("T2", "T3", "T4")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_fraction_is_the_share_of_passed_cases(stack):
    (result,) = await verifier(stack, scoring="fraction").score([item("def f(x): return x + (x < 3)")])
    assert result.verdict.score == pytest.approx(2 / 3)
    assert result.verdict.detail.startswith("passed 2/3; case 2 WRONG_ANSWER")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_that_never_ends_costs_the_others_nothing(stack):
    given = [
        item("def f(x):\n    while True: pass", {**CALLS, "time_limit": 0.3}),
        item("def f(x): return 2 * x - x + 1"),
    ]
    endless, right = await verifier(stack).score(given)
    assert (endless.verdict.status, endless.verdict.score) == ("TIME_LIMIT", 0.0)
    assert right.verdict.score == 1.0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_that_asks_more_than_the_sandbox_has_is_told_so(stack):
    (result,) = await verifier(stack, language="rust", min_tier="T3").score([item("fn main() {}", STDIO)])
    assert result.fault.kind == common.FAULT_KIND_CONFIG
    assert "rust" in result.fault.message


@pytest.mark.asyncio(loop_scope="module")
async def test_expected_values_stay_out_of_what_a_verdict_says(stack):
    row = {"input_output": {"fn_name": "f", "inputs": [[1]], "outputs": ["the-secret-answer"]}}
    (result,) = await verifier(stack).score([item("def f(x): return 'guess'", row)])
    assert result.verdict.status == "WRONG_ANSWER"
    assert "secret" not in result.verdict.detail
