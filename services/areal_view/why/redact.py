"""Removal of secrets from text that leaves the machine: known values first, then what looks like a secret. Pure."""

import re
from collections.abc import Collection

REMOVED = "[removed]"
_SHORTEST = 6  # characters of a known secret: a shorter one would remove words

_NAMED = re.compile(
    r"""(?ix) (["']?[\w.-]*(?:token|secret|passw(?:or)?d|passphrase|api[_-]?key|access[_-]?key|private[_-]?key
    |credentials?|authorization|cookie)["']? \s*[=:]\s* ["']?) (?:(?:bearer|basic)\s+)? ([^\s"',;}\]&]{4,})"""
)
_SHAPED = re.compile(
    r"""(?x) \b(?: hf_[A-Za-z0-9]{16,} | sk-[A-Za-z0-9_-]{16,} | gh[pousr]_[A-Za-z0-9]{20,} | github_pat_\w{20,}
    | (?:AKIA|ASIA)[A-Z0-9]{16} | xox[abprs]-[A-Za-z0-9-]{10,} | glpat-[\w-]{16,} | wandb_v1_\w{16,}
    | eyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]* )"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_IN_ADDRESS = re.compile(r"(\w+://[^\s/:@]*:)[^\s/@]+@")
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_COUNTS = re.compile(r"^\d+(\.\d+)?$")  # `max_tokens: 16` is no secret


def redacted(text: str, secrets: Collection[str] = ()) -> str:
    """The text without `secrets` and without what looks like a password, key or token."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, REMOVED)
    text = _KEY_BLOCK.sub(REMOVED, text)
    text = _SHAPED.sub(REMOVED, text)
    text = _BEARER.sub(rf"\1 {REMOVED}", text)
    text = _IN_ADDRESS.sub(rf"\1{REMOVED}@", text)
    return _NAMED.sub(lambda found: found[0] if _COUNTS.match(found[2]) else found[1] + REMOVED, text)
