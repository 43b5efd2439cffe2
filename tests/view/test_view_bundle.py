"""The bundle of a run that hangs: what one asks for is in it, and no secret is."""

from __future__ import annotations

import json
import os
import time
import zipfile
from pathlib import Path

import psutil
import pytest
from areal.observe.live import Live, LiveRole, LiveWait, write_live
from areal_view.commands import why_run
from areal_view.why.job_facts import REMOVED, redacted

KNOWN = "q7Zr2-the-run-token-0451"
PLANTED = {
    "known value": KNOWN,
    "redis password": "pw-9f8e7d6c5b",
    "environment": "env-value-55aa66bb",
    "hugging face": "hf_abcdefghijklmnopqrstuv",
    "openai": "sk-proj-abcdefghijklmnop1234",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "aws": "AKIAABCDEFGHIJKLMNOP",
    "jwt": "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
    "by its name": "hunter2hunter2",
    "in an address": "s3cr3tpass",
    "header": "dXNlcjpwYXNzd29yZA==",
    "key block": "MIIEvQIBADANBg",
}
LINES = [
    f"call with token {KNOWN}",
    "redis auth pw-9f8e7d6c5b",
    "worker has env-value-55aa66bb",
    "loading with hf_abcdefghijklmnopqrstuv and sk-proj-abcdefghijklmnop1234",
    "push ghp_abcdefghijklmnopqrstuvwxyz012345 AKIAABCDEFGHIJKLMNOP",
    "cookie eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl",
    "{'db_password': 'hunter2hunter2', 'max_tokens': 16}",
    "redis://user:s3cr3tpass@127.0.0.1:6379/0",
    "Authorization: Basic dXNlcjpwYXNzd29yZA==",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that hangs, with a secret of each kind in its log."""
    root = tmp_path / "digits"
    (root / "logs").mkdir(parents=True)
    (root / "redis").mkdir()
    (root / "resolved.json").write_text(json.dumps({"job": {"spec": {"env": {"API_KEY": "hunter2hunter2"}}}}))
    trainer = LiveRole("trainer", "ready", waits=[LiveWait("groups", "group 3", 4.0, 60.0)])
    began = psutil.Process().create_time()
    write_live(root / "live.json", Live(time.time(), os.getpid(), began, 0, 160, roles=[trainer]))
    log = [f"line {n}\n" for n in range(900)] + ["Timeout (0:00:08)!\n", 'File "users.py", line 3 in deadlock\n']
    (root / "logs" / "worker-0.log").write_text("".join(log) + "\n".join(LINES) + "\nlast words\n")
    from areal.plan import RunLayout

    layout = RunLayout(root)
    layout.access.mkdir()
    (layout.access / "token.trainer").write_text(KNOWN + "\n")
    layout.redis_password("worker").write_text("pw-9f8e7d6c5b")
    monkeypatch.setenv("MY_SECRET", "env-value-55aa66bb")
    return root


def test_a_bundle_holds_what_one_asks_for_and_no_secret(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "digits.zip"
    why_run(run, bundle=target)
    assert target.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(target) as bundle:
        parts = {name: bundle.read(name).decode() for name in bundle.namelist()}
    assert parts.keys() >= {"versions.txt", "why.txt", "resolved.json", "live.json", "processes.txt"}
    assert "group 3" in parts["live.json"]
    assert "in deadlock" in parts["stacks/worker-0.txt"]
    assert len(parts["logs/worker-0.txt"].splitlines()) <= 200
    assert "last words" in parts["logs/worker-0.txt"]
    assert "torch" in parts["versions.txt"]
    everything = "".join(parts.values())
    assert {kind for kind, secret in PLANTED.items() if secret in everything} == set()
    assert "logs/worker-0.txt" in capsys.readouterr().err


def test_what_is_no_secret_stays():
    plain = "max_tokens: 16, tokens=4096, token 17 of group 3, http://127.0.0.1:80/x, step 7; secretary"
    assert redacted(plain) == plain
    assert redacted("password=abcdefg") == f"password={REMOVED}"
