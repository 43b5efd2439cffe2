"""Models of the Hugging Face hub: the address hf://owner/name@revision, this machine's cache of them, the download.

The cache, the token and the hub's address are those of `huggingface_hub` (HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE). A model that is there whole is read from there without a request.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeGuard

from areal.distribution import install
from areal.errors import ConfigError, InfraError
from areal.files import write_atomically

SCHEME = "hf://"
FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")  # of a model and its tokenizer


def is_hub(uri: str | None) -> TypeGuard[str]:
    """Whether an address is one of the hub."""
    return uri is not None and uri.startswith(SCHEME)


def cached(uri: str) -> Path | None:
    """Directory of the model in the cache; None when it lacks some of its files."""
    try:
        from huggingface_hub import errors
    except ImportError:
        return None
    try:
        found = _snapshot(uri, here=True)
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, errors.CachedRepoTreeNotFoundError):
        return None
    return found if any(found.glob("*.safetensors")) else None


def fetch(uri: str, say: Callable[[str], None]) -> Path:
    """The model's directory in the cache, downloaded when it isn't there.

    Raises ConfigError for a model that isn't there or isn't for this token, InfraError when the hub can't be reached.
    """
    with _refusals(uri, "HF_TOKEN"):
        if (found := cached(uri)) is not None:
            return found
        say(f"downloading {uri}")
        return _snapshot(uri, here=False)
    raise AssertionError("refusals are raised")


def download(uri: str, target: Path) -> str:
    """Download a model into `target`, whole or not at all; answers what it is, in words.

    The files are of the commit that the revision names now. Beside them, `target`.json has the commit and the sha256 of
    every file. What an earlier try downloaded is used again. A target that is there stays, and is not looked at.
    Raises as `fetch` does, with the Secret in place of HF_TOKEN.
    """
    record = target.with_name(f"{target.name}.json")
    if not target.is_dir():
        name, revision = _parts(uri)
        partial = target.with_name(f".{target.name}.part")
        with _refusals(uri, "model.tokenSecret"):
            from huggingface_hub import HfApi, snapshot_download

            commit = str(HfApi().model_info(name, revision=revision or "main").sha)
            snapshot_download(name, revision=commit, allow_patterns=list(FILES), local_dir=partial)
            shutil.rmtree(partial / ".cache", ignore_errors=True)
            files = {
                str(file.relative_to(partial)): _sha256(file) for file in sorted(partial.rglob("*")) if file.is_file()
            }
            write_atomically(record, json.dumps({"uri": uri, "commit": commit, "files": files}, indent=1).encode())
            partial.rename(target)
    told = json.loads(record.read_bytes())
    return f"model {told['uri']}: commit {told['commit']}, {len(told['files'])} files"


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def _refusals(uri: str, token: str) -> Iterator[None]:
    """What the hub refuses, in our words. `token` is where a token is given."""
    try:
        from huggingface_hub import errors
    except ImportError:
        raise ConfigError(f"downloading {uri} needs huggingface_hub", fix=install("trainer", "engine")) from None
    name, revision = _parts(uri)
    try:
        yield
    except errors.GatedRepoError:
        raise ConfigError(
            f"{name} is gated on the Hugging Face hub",
            fix=f"Ask for access on its page, and set {token} to your token.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"the Hugging Face hub has no model {name}, or not for you",
            fix=f"Correct its name; for a private model set {token} to a token that may read it.",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(
            f"{name} has no revision {revision} on the Hugging Face hub",
            fix="Name a branch, a tag or a commit after the @, or leave it out.",
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:  # a missing connection is an OSError
        raise InfraError(
            f"{uri} can't be downloaded: {error}",
            fix="Look at the connection, HF_ENDPOINT and HF_HUB_OFFLINE, or name a directory instead.",
        ) from error


def _parts(uri: str) -> tuple[str, str | None]:
    name, _, revision = uri.removeprefix(SCHEME).partition("@")
    return name, revision or None


def _snapshot(uri: str, *, here: bool) -> Path:
    from huggingface_hub import snapshot_download

    name, revision = _parts(uri)
    return Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES), local_files_only=here))
