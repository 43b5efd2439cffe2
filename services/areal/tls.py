"""Certificates by which the processes of a run know each other, in one directory that `AREAL_TLS_DIR` names.

Owns the names of its files and how they are read while somebody replaces them: `ca.crt` (the authorities to trust, two
while one takes over from another), `tls.crt` and `tls.key`. Without the variable connections are plain.
"""

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from areal.errors import ConfigError

ENV_TLS_DIR = "AREAL_TLS_DIR"
CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"


@dataclass(frozen=True)
class TlsIdentity:
    """Who a process is, and whom it trusts; all PEM."""

    authorities: bytes
    certificate: bytes
    key: bytes = field(repr=False)


def tls_dir() -> Path | None:
    """The directory of this process; None: connections are plain."""
    named = os.environ.get(ENV_TLS_DIR)
    return Path(named) if named else None


_known: dict[Path, tuple[object, TlsIdentity]] = {}  # directory → what its files looked like, and said


def identity() -> TlsIdentity | None:
    """The certificates that the files hold now, or held before the files stopped to fit together; None without any.

    Raises ConfigError when they never did.
    """
    if (directory := tls_dir()) is None:
        return None
    places = [directory / name for name in (CA_FILE, CERTIFICATE_FILE, KEY_FILE)]
    try:
        mark = _mark(places)
        if directory in _known and _known[directory][0] == mark:
            return _known[directory][1]
        found = TlsIdentity(*(place.read_bytes() for place in places))
        ssl.create_default_context(cafile=places[0]).load_cert_chain(places[1], places[2])  # refuses another's key
        if _mark(places) == mark or directory not in _known:
            _known[directory] = (mark, found)
    except OSError as error:  # an SSLError is one
        if directory not in _known:
            raise ConfigError(
                f"{directory} holds no certificate to use: {error}",
                fix=f"put {CA_FILE}, {CERTIFICATE_FILE} and {KEY_FILE} there, or unset {ENV_TLS_DIR}",
            ) from error
    return _known[directory][1]


def _mark(places: Sequence[Path]) -> object:
    return [(one.st_ino, one.st_mtime_ns, one.st_size) for one in map(Path.stat, places)]
