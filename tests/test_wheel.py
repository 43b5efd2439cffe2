"""The wheel: installed where no sources are, it brings the examples, and each of them is a job that can run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from areal.spec.load import load_job
from areal_trainer.init_model import init_model

pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {"smollm2", "swe_tiny"}  # their models come from a package, those on GPUs from the hub
UV = shutil.which("uv") or str(ROOT / ".cache/uv/bin/uv")


class Installation:
    """An environment that holds the wheel, and a directory to work in that is no checkout."""

    def __init__(self, root: Path) -> None:
        subprocess.run(["make", "-s", "wheel"], cwd=ROOT, check=True, timeout=300)
        (wheel,) = (ROOT / "dist").glob("areal_kube-*.whl")
        self.root, self.bin = root, root / "env/bin"
        subprocess.run([UV, "venv", "-q", "--python", sys.executable, root / "env"], check=True)
        constraints = ["-c", str(ROOT / "constraints.txt")]
        wanted = f"{wheel}[reward,data,view]"  # and no torch: check needs none
        subprocess.run([UV, "pip", "install", "-q", "-p", self.bin / "python", *constraints, wanted], check=True)

    def typed(self, line: str) -> str:
        """What one line prints, in an environment that holds nothing but a PATH. Fails with what it says otherwise."""
        environment = {"PATH": f"{self.bin}:{os.defpath}", "HOME": str(self.root)}
        done = subprocess.run(line, shell=True, cwd=self.root, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory) -> Installation:
    return Installation(tmp_path_factory.mktemp("elsewhere"))


def test_examples_of_the_wheel_are_fine_where_they_are_copied_to(installation):
    typed, root = installation.typed, installation.root
    assert str(ROOT) not in typed("python -c 'import areal, areal_trainer; print(areal.__file__)'")
    typed("areal new examples .")
    typed("python examples/digits_data.py data/digits")
    typed("python examples/code_rl_data.py data/code")
    typed("python examples/digits_pairs.py data/digits/train.jsonl data/digits/pairs.jsonl")
    typed("python examples/digits_pairs.py data/digits/heldout.jsonl data/digits/heldout-pairs.jsonl")
    init_model(root / "models/new-1m")
    jobs = sorted((root / "examples").glob("*.yaml"))
    assert [job.name for job in jobs] == sorted(job.name for job in (ROOT / "examples").glob("*.yaml"))
    looked_at = []
    for job in jobs:
        spec = load_job(job).spec
        if spec.trainer.gpus or job.stem in ELSEWHERE:
            continue
        looked_at.append(str(job.relative_to(root)))
        scorer = spec.reward.model.path if spec.reward.model else None
        for place in (root / path for path in (spec.model.path, scorer) if path):
            if not place.exists():  # what an example before it would have trained
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(root / "models/new-1m")
    (root / "check_all.py").write_text(CHECK_ALL)
    refused = json.loads(typed(f"python check_all.py {' '.join(looked_at)}"))
    tutorial = ["python-not-here"]  # the environment that its page makes
    absent = {"examples/verifiers_digits.yaml": tutorial, "examples/agent_sdk.yaml": tutorial}
    absent["examples/scored_rl.yaml"] = ["model"]  # the stand-in has no head that scores
    assert refused == {job: absent.get(job, ["machine"]) for job in looked_at}  # torch is not here, all else is


CHECK_ALL = """
import contextlib, io, json, sys
from areal.cli.main import app, guarded

def refusals(job):
    with contextlib.redirect_stdout(io.StringIO()) as said:
        guarded(lambda: app(["check", job, "--json"]))
    return [one["rule"] for one in json.loads(said.getvalue())["findings"] if one["severity"] == "error"]

print(json.dumps({job: refusals(job) for job in sys.argv[1:]}))
"""
