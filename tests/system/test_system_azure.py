"""Copies of runs, models and rows in Azure's blob store, as Microsoft's own emulator answers (Azurite)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import httpx
import pytest
from areal.errors import ConfigError
from areal.object_store import ObjectStore
from areal.plan import remote
from areal.record import archive
from areal.record.archive import Archive
from support.archived_runs import make_run, tree
from support.job_run import ROOT
from support.s3_server import BUCKET, free_port

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(300)]

ACCOUNT = "devstoreaccount1"  # with its key the emulator's documentation names it: no secret
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
MODEL = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An emulator with an empty container, whose credentials are in the environment; its address."""
    program, port = ROOT / ".cache" / "azurite" / "node_modules" / ".bin" / "azurite-blob", free_port()
    assert program.is_file(), "tools/setup nightly installs it"
    place = ("--location", str(tmp_path), "--blobHost", "127.0.0.1", "--blobPort", str(port))
    with subprocess.Popen([program, "--silent", "--skipApiVersionCheck", *place], cwd=tmp_path) as process:
        try:
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            make_container(endpoint)
            for name, value in {"ACCOUNT_NAME": ACCOUNT, "ACCOUNT_KEY": KEY, "ENDPOINT": endpoint}.items():
                monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
            yield f"az://{BUCKET}"
        finally:
            process.kill()


def make_container(endpoint: str) -> None:
    """By Azure's shared key: the library that is tested makes none."""
    told = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    headers = "\n".join(f"{name}:{value}" for name, value in told.items())
    signed = "PUT" + "\n" * 12 + f"{headers}\n/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    mark = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
    told["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mark).decode()}"
    deadline = time.monotonic() + 60
    while True:
        try:
            made = httpx.put(f"{endpoint}/{BUCKET}?restype=container", headers=told)
            assert made.status_code == 201, made.text
            return
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_run_is_copied_grows_and_comes_back(azure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_PIECE_BYTES", 64 << 10)
    run_dir, store = make_run(tmp_path / "run"), ObjectStore.connect(f"{azure}/jobs/team/run-1")
    journal = run_dir / "journal" / "controller.jsonl"
    journal.write_bytes(os.urandom(1 << 20))
    archive.begin(store)
    copier, sent = Archive(run_dir), []
    copier.copy(store)
    with journal.open("ab") as file:
        file.write(b"more\n")
    copier.copy(store, sent.append)
    assert sum(sent) == 5
    assert archive.fetch(store, tmp_path / "back", ["."], lambda words: None) > 9
    back = tree(tmp_path / "back")
    assert back["journal/controller.jsonl"] == journal.read_bytes()
    assert back.items() <= tree(run_dir).items()

    found = store.read(archive.LISTING)
    assert found is not None
    assert store.replace(archive.LISTING, found[0] + b" ", found[1])
    assert not store.replace(archive.LISTING, b"{}", found[1])  # it has changed since
    assert not store.replace(archive.LISTING, b"{}", None)  # and is there
    store.delete(store.entries(""))
    assert store.entries("") == {}
    with pytest.raises(ConfigError, match="not found"):
        archive.begin(ObjectStore.connect("az://no-such-container/a"))
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"wrong").decode())
    with pytest.raises(ConfigError, match="refuses"):
        ObjectStore.connect(f"{azure}/jobs").read("a")


def test_models_and_rows_come_from_it(azure: str) -> None:
    for name in (*MODEL, "optimizer.pt"):
        ObjectStore.connect(f"{azure}/models/tiny").write(name, lambda name=name: [name.encode()], len(name))
    for name in ("a.jsonl", "b.jsonl", "c.txt"):
        ObjectStore.connect(f"{azure}/rows").write(name, lambda: [b"{}\n"], 3)
    said: list[str] = []
    place = remote.fetch(f"{azure}/models/tiny", said.append)
    assert {file.name: file.read_text() for file in place.iterdir()} == {name: name for name in MODEL}
    assert remote.fetch(f"{azure}/models/tiny", said.append) == place
    assert len(said) == 1, "it is downloaded once"
    rows = remote.fetch(f"{azure}/rows/*.jsonl", said.append)
    assert sorted(file.name for file in rows.parent.iterdir()) == ["a.jsonl", "b.jsonl"]
