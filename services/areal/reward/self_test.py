"""One look at whether the sandbox judges right and holds: a good program, a wrong one, and one that attacks.

Goes past the queue: a full service is a healthy one. The attack tries what no tier from T2 upwards allows; a tier below
promises nothing, and only judging is tested there.
"""

from __future__ import annotations

import os
import secrets

from areal.reward.dispatch.readiness import Finding
from areal.reward.judge.judge import Judge
from areal.reward.judge.values import Options, Status, StdioCase, StdioSuite, Submission
from areal.reward.sandbox.runner import Sandbox
from areal.reward.sandbox.values import Limits, Run, Script, Tier

_ATTACK = """
import os, socket
won = []
def tried(name, act):
    try:
        act()
    except BaseException:
        return
    won.append(name)
tried("a socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
tried("the service's memory", lambda: open("/proc/{pid}/mem", "rb"))
tried("the service's environment", lambda: open("/proc/{pid}/environ", "rb").read())
tried("a signal to the service", lambda: os.kill({pid}, 0))
tried("a file of the host", lambda: open("/etc/shadow", "rb").read())
print("won: " + ", ".join(won) if won else "held")
"""
_LIMITS = Limits(wall_s=20.0, cpu_s=5.0)  # a busy machine is no broken one


class SelfTest:
    """Called again and again; each call runs three programs."""

    def __init__(self, sandbox: Sandbox, judge: Judge, *, service_pid: int | None = None) -> None:
        self._sandbox = sandbox
        self._judge = judge
        self._pid = os.getpid() if service_pid is None else service_pid

    async def __call__(self) -> Finding:
        expected = secrets.token_hex(8)
        suite = StdioSuite((StdioCase(expected, expected),), limits=_LIMITS)
        options = Options(min_tier=Tier.T0, no_cache=True)
        for source, status in (("print(input())", Status.PASSED), ("print(input()[:-1])", Status.WRONG_ANSWER)):
            judgement = await self._judge.judge(Submission(source), suite, options)
            if judgement.status is not status:
                why = judgement.message or "; ".join(case.detail for case in judgement.cases if case.detail)
                return Finding(False, f"a program that is {status.value} was judged {judgement.status.value}: {why}")
        tier = self._sandbox.powers.tier
        if tier < Tier.T2:
            return Finding(True, f"judging is right; {tier.name} promises nothing else")
        ended = await self._sandbox.run(Run(Script(_ATTACK.replace("{pid}", str(self._pid))), limits=_LIMITS))
        said = ended.stdout.decode(errors="replace").strip()
        if said != "held":
            return Finding(
                False, f"an attack was not held: {said or ended.ending.value}"[:300], breach=said.startswith("won")
            )
        return Finding(True, f"judging is right, and {tier.name} held an attack")
