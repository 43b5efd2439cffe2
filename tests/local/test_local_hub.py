"""A model of the Hugging Face hub: downloaded by `areal run`, read from the cache from then on, refused in words."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hub_server import COMMIT, hub_of
from support.tiny_job import make_tiny_job, write_job

pytestmark = pytest.mark.component

STAGE = """
import json, sys
from pathlib import Path
from areal.errors import ArealError
from areal.local.staging import StagingRequest, load, stage
said = []
request = StagingRequest(Path("job.yaml"), fresh="--fresh" in sys.argv, resume="--resume" in sys.argv)
try:
    resolved = stage(request, load(request, said.append), said.append)
    found = {"model": str(resolved.model_path), "teacher": str(resolved.teacher_path)}
    print(json.dumps({**found, "said": said}))
except ArealError as error:
    print(json.dumps({"exit": int(error.exit_code), "said": f"{error.message} {error.fix}"}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny_job(tmp_path)
    return tmp_path


def python(folder: Path, endpoint: str, *arguments: str) -> str:
    """What a process with this hub and a cache of its own prints."""
    ours = {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | ours
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_of_the_hub_is_downloaded_once_and_a_lost_file_again(folder: Path) -> None:
    write_job(folder, model={"uri": "hf://team/tiny@main"})
    with hub_of("team/tiny", folder / "model") as (endpoint, asked):
        told = python(folder, endpoint, "-m", "areal.cli.main", "check", "job.yaml")
        assert "areal run` downloads it" in " ".join(told.split())
        assert asked == [], "check downloads nothing"
        first = json.loads(python(folder, endpoint, "-c", STAGE))
        assert "downloading hf://team/tiny@main" in first["said"]
        model = Path(first["model"])
        assert model.name == COMMIT
        assert {file.name for file in model.iterdir()} >= {"config.json", "tokenizer.json", "model.safetensors"}
        asked.clear()
        told = python(folder, endpoint, "-m", "areal.cli.main", "check", "job.yaml")
        assert "downloads it" not in " ".join(told.split())
        again = json.loads(python(folder, endpoint, "-c", STAGE, "--fresh"))
        assert (again["model"], asked) == (first["model"], [])
        (model / "model.safetensors").unlink()
        mended = json.loads(python(folder, endpoint, "-c", STAGE, "--resume"))
        assert "downloading hf://team/tiny@main" in mended["said"]
        assert mended["model"] == first["model"]


def test_a_teacher_of_the_hub_is_downloaded_as_the_model_is_and_kept_on_resume(folder: Path) -> None:
    taught = {"name": "OnPolicyDistillation", "groupSize": 1, "batchSize": 4, "maxSteps": 3}
    write_job(folder, algorithm={**taught, "teacher": {"path": "hf://team/tiny@main"}})
    with hub_of("team/tiny", folder / "model") as (endpoint, asked):
        told = " ".join(python(folder, endpoint, "-m", "areal.cli.main", "check", "job.yaml").split())
        assert "algorithm.teacher.path: hf://team/tiny@main isn't on this machine; `areal run` downloads it" in told
        assert asked == [], "check downloads nothing"
        first = json.loads(python(folder, endpoint, "-c", STAGE))
        assert first["said"].count("downloading hf://team/tiny@main") == 1
        assert (Path(first["teacher"]).name, Path(first["model"])) == (COMMIT, folder / "model")
        again = json.loads(python(folder, endpoint, "-c", STAGE, "--resume"))
        assert again["teacher"] == first["teacher"]
        write_job(folder, algorithm={**taught, "teacher": {"path": "hf://team/unknown"}})
        refused = json.loads(python(folder, endpoint, "-c", STAGE, "--fresh"))
        assert (refused["exit"], "has no model team/unknown" in refused["said"]) == (64, True)


@pytest.mark.parametrize(
    ("uri", "code", "words"),
    [
        ("hf://gated/model", 64, "HF_TOKEN"),
        ("hf://team/unknown", 64, "has no model team/unknown"),
        ("hf://team/tiny@gone", 64, "no revision gone"),
    ],
)
def test_what_the_hub_refuses_is_said_in_words(folder: Path, uri: str, code: int, words: str) -> None:
    write_job(folder, model={"uri": uri})
    with hub_of("team/tiny", folder / "model") as (endpoint, _):
        refused = json.loads(python(folder, endpoint, "-c", STAGE))
    assert refused["exit"] == code
    assert words in refused["said"]
    assert not (folder / "runs" / "tiny").exists()


def test_a_hub_that_is_out_of_reach_is_no_fault_of_the_job(folder: Path) -> None:
    write_job(folder, model={"uri": "hf://team/tiny"})
    refused = json.loads(python(folder, "http://127.0.0.1:9", "-c", STAGE))
    assert refused["exit"] == 75
    assert "HF_ENDPOINT" in refused["said"]


DOWNLOAD = """
import json, sys
from pathlib import Path
from areal.errors import ArealError
from areal.plan import hub
try:
    print(json.dumps({"said": hub.download(sys.argv[1], Path(sys.argv[2]))}))
except ArealError as error:
    print(json.dumps({"exit": int(error.exit_code), "said": f"{error.message} {error.fix}"}))
"""


def test_a_model_is_downloaded_into_a_directory_whole_with_the_digest_of_every_file(folder: Path) -> None:
    target = folder / "run" / "start-model"
    target.parent.mkdir()
    with hub_of("team/tiny", folder / "model") as (endpoint, asked):
        told = json.loads(python(folder, endpoint, "-c", DOWNLOAD, "hf://team/tiny", str(target)))["said"]
        assert told.startswith(f"model hf://team/tiny: commit {COMMIT}, ")
        record = json.loads((target.parent / "start-model.json").read_text())
        assert record["files"] == {
            file.name: hashlib.sha256((folder / "model" / file.name).read_bytes()).hexdigest()
            for file in target.iterdir()
        }
        assert {"config.json", "tokenizer.json", "model.safetensors"} <= record["files"].keys()
        asked.clear()
        assert json.loads(python(folder, endpoint, "-c", DOWNLOAD, "hf://team/tiny", str(target)))["said"] == told
        assert asked == [], "what is there is not asked for again"


@pytest.mark.parametrize(("name", "words"), [("gated/model", "gated"), ("team/secret", "no model team/secret")])
def test_a_refused_download_leaves_nothing_and_names_the_secret(folder: Path, name: str, words: str) -> None:
    target = folder / "start-model"
    with hub_of("team/tiny", folder / "model") as (endpoint, _):
        told = json.loads(python(folder, endpoint, "-c", DOWNLOAD, f"hf://{name}", str(target)))
    assert words in told["said"]
    assert "model.tokenSecret" in told["said"]
    assert not target.exists()
