"""Self-test of judge and sandbox: runs a right program, a wrong one, and ones that attack.

Goes past the queue: a full service is a healthy one. The attacks try what no tier from T2 upwards allows; a tier below
promises nothing, and only judging is tested there. What costs a second or much memory is tried once.
"""

from __future__ import annotations

import os
import secrets

from areal_judge.judge.dispatch.readiness import SelfTestFinding
from areal_judge.judge.judge import Judge
from areal_judge.judge.values import Options, Status, StdioCase, StdioSuite, Submission
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.host.selftest import self_test
from areal_judge.sandbox.values import Limits, Tier

_LIMITS = Limits(wall_s=20.0, cpu_s=5.0)  # a busy machine is no broken one


class SelfTest:
    """Called again and again; each call runs three programs."""

    def __init__(self, sandbox: Sandbox, judge: Judge, *, service_pid: int | None = None) -> None:
        self._sandbox = sandbox
        self._judge = judge
        self._pid = os.getpid() if service_pid is None else service_pid
        self._first = True

    async def __call__(self) -> SelfTestFinding:
        expected = secrets.token_hex(8)
        suite = StdioSuite((StdioCase(expected, expected),), limits=_LIMITS)
        options = Options(min_tier=Tier.T0)
        for source, status in (("print(input())", Status.PASSED), ("print(input()[:-1])", Status.WRONG_ANSWER)):
            judgement = await self._judge.judge(Submission(source), suite, options)
            if judgement.status is not status:
                why = judgement.message or "; ".join(case.detail for case in judgement.cases if case.detail)
                return SelfTestFinding(
                    False, f"a program that is {status.value} was judged {judgement.status.value}: {why}"
                )
        tier = self._sandbox.powers.tier
        if tier < Tier.T2:
            return SelfTestFinding(True, f"judging is right; {tier.name} promises nothing else")
        probes = await self_test(self._sandbox, thorough=self._first, service_pid=self._pid)
        if failed := [probe for probe in probes if not probe.held]:
            words = "; ".join(f"{probe.name}: {probe.detail}" for probe in failed)
            return SelfTestFinding(
                False, f"the sandbox didn't hold: {words}"[:300], breach=any("won" in one.detail for one in failed)
            )
        self._first = False
        held = sum(probe.name.endswith("attack") for probe in probes)
        return SelfTestFinding(True, f"judging is right, and {tier.name} held {held} attacks")
