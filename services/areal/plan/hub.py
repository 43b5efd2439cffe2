"""Models of the Hugging Face hub: the address hf://owner/name@revision, this machine's cache of them, the download.

The cache, the token and the hub's address are those of `huggingface_hub` (HF_HOME, HF_TOKEN, HF_ENDPOINT,
HF_HUB_OFFLINE). A model that is there whole is read from there without a request.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

from areal.errors import ConfigError, InfraError

SCHEME = "hf://"
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model")  # of a model and its tokenizer


def is_hub(uri: str | None) -> TypeGuard[str]:
    """Whether an address is one of the hub."""
    return uri is not None and uri.startswith(SCHEME)


def cached(uri: str) -> Path | None:
    """Where the cache has the model; None when it doesn't have all of its files."""
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
    try:
        from huggingface_hub import errors
    except ImportError:
        raise ConfigError(
            f"downloading {uri} needs huggingface_hub", fix="pip install 'areal-kube[trainer,engine]'"
        ) from None
    if (found := cached(uri)) is not None:
        return found
    name, revision = _parts(uri)
    say(f"downloading {uri}")
    try:
        return _snapshot(uri, here=False)
    except errors.GatedRepoError:
        raise ConfigError(
            f"{name} is gated on the Hugging Face hub",
            fix="Ask for access on its page, and set HF_TOKEN to your token.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"the Hugging Face hub has no model {name}, or not for you",
            fix="Correct model.uri; for a private model set HF_TOKEN to a token that may read it.",
        ) from None
    except errors.RevisionNotFoundError:
        raise ConfigError(
            f"{name} has no revision {revision} on the Hugging Face hub",
            fix="Name a branch, a tag or a commit after the @, or leave it out.",
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:  # a missing connection is an OSError
        raise InfraError(
            f"{uri} can't be downloaded: {error}",
            fix="Look at the connection, HF_ENDPOINT and HF_HUB_OFFLINE, or name a directory in model.path.",
        ) from error


def _parts(uri: str) -> tuple[str, str | None]:
    name, _, revision = uri.removeprefix(SCHEME).partition("@")
    return name, revision or None


def _snapshot(uri: str, *, here: bool) -> Path:
    from huggingface_hub import snapshot_download

    name, revision = _parts(uri)
    return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES), local_files_only=here))
