"""Copies of runs, models and rows in Google Cloud Storage: conditional writes go by an object's generation there.

The cases run over memory, and over Google's own testbench where AREAL_GCS_TESTBENCH names its program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from areal.errors import ConfigError
from areal.object_store import ObjectStore
from areal.plan import remote
from areal.record import archive
from areal.record.archive import Archive
from support.archived_runs import make_run, tree
from support.google_store import BUCKET, MemoryObjects, google_store, google_testbench

pytestmark = pytest.mark.component
_PROGRAM = os.environ.get("AREAL_GCS_TESTBENCH", "")


@pytest.fixture(
    params=[
        "memory",
        pytest.param("testbench", marks=pytest.mark.skipif(not _PROGRAM, reason="AREAL_GCS_TESTBENCH is not set")),
    ]
)
def google(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket whose address and credentials are in the environment; its address."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "memory":
        with google_store(MemoryObjects()) as found:
            for name, value in found.items():
                monkeypatch.setenv(name, value)
            yield f"gs://{BUCKET}"
    else:
        with google_testbench(Path(_PROGRAM), tmp_path) as objects, google_store(objects) as found:
            for name, value in found.items():
                monkeypatch.setenv(name, value)
            yield f"gs://{BUCKET}"


def test_an_object_is_replaced_only_as_it_was_read(google: str) -> None:
    store = ObjectStore.connect(f"{google}/jobs")
    assert store.read("list.json") is None
    assert store.stat("list.json") is None
    assert store.replace("list.json", b"first", None)
    assert not store.replace("list.json", b"other", None)  # it is there
    assert store.replace("list.json", b"first", None)  # a write whose answer was lost
    found = store.read("list.json")
    assert found is not None
    assert found[0] == b"first"
    assert store.stat("list.json") == store.entries("")["list.json"]
    assert store.replace("list.json", b"second", found[1])
    assert not store.replace("list.json", b"third", found[1])  # it has changed since
    now = store.read("list.json")
    assert now is not None
    assert now[0] == b"second"
    assert now[1] != found[1]


def test_a_run_is_copied_grows_and_comes_back(google: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_PIECE_BYTES", 64 << 10)
    run_dir, store = make_run(tmp_path / "run"), ObjectStore.connect(f"{google}/jobs/team/run-1")
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
    store.delete([*store.entries(""), "one that is gone"])
    assert store.entries("") == {}
    with pytest.raises(ConfigError, match="Make the bucket"):
        archive.begin(ObjectStore.connect("gs://no-such-bucket/a"))
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "wrong")
    with pytest.raises(ConfigError, match="refuses"):
        ObjectStore.connect(f"{google}/jobs").read("a")


def test_a_model_comes_from_it(google: str) -> None:
    names = ("config.json", "model.safetensors", "tokenizer.json")
    for name in (*names, "optimizer.pt"):
        ObjectStore.connect(f"{google}/models/tiny").write(name, lambda name=name: [name.encode()], len(name))
    said: list[str] = []
    place = remote.fetch(f"{google}/models/tiny", said.append)
    assert {file.name: file.read_text() for file in place.iterdir()} == {name: name for name in names}
    assert remote.fetch(f"{google}/models/tiny", said.append) == place
    assert len(said) == 1, "it is downloaded once"


@pytest.mark.parametrize("name", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT_KEY", "key.json"])
def test_a_key_is_taken_under_any_name_and_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`kubectl create secret generic … --from-file=key.json` names it by its file."""
    key = {"type": "service_account", "client_email": "a@b", "private_key_id": "1", "private_key": "private words"}
    secret = tmp_path / "secret"
    secret.mkdir()
    with google_store(MemoryObjects()) as found:
        monkeypatch.setenv("GOOGLE_BASE_URL", found["GOOGLE_BASE_URL"])
        (secret / name).write_text(json.dumps(key | {"disable_oauth": True}))
        with pytest.raises(ConfigError, match="refuses") as refused:
            ObjectStore.connect(f"gs://{BUCKET}/a", secret).read("b")
        (secret / name).write_text(json.dumps(key)[:-1])
        with pytest.raises(ConfigError, match="service account") as broken:
            ObjectStore.connect(f"gs://{BUCKET}/a", secret).read("b")
    for error in (refused, broken):
        assert "private words" not in f"{error.value}"


def test_a_key_in_the_environment_is_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", '{"private_key": "private words"}')
    with pytest.raises(ConfigError, match="service account file") as refused:
        ObjectStore.connect(f"gs://{BUCKET}/a").read("b")
    assert "private words" not in f"{refused.value}"


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("s3://a/b", {"AWS_ACCESS_KEY_ID": "words\n", "AWS_SECRET_ACCESS_KEY": "words\n", "AWS_REGION": "here"}),
        ("az://a/b", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_TOKEN": "words\n"}),
        ("az://a/b", {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "words!"}),
        ("gs://a/b", {"GOOGLE_BEARER_TOKEN": "words\n"}),
        ("gs://a/b", {"GOOGLE_SERVICE_ACCOUNT_KEY": "words"}),
    ],
)
def test_a_credential_that_cannot_be_one_is_a_fault_of_the_configuration(
    address: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's library panics at a line's end, which is no Exception, and ended whoever copied."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"credential|Access Key|service account") as refused:
        ObjectStore.connect(address).read("c")
    assert "words" not in f"{refused.value}"
