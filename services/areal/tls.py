"""Certificates by which the processes of a run know each other, in one directory that `AREAL_TLS_DIR` names.

Owns the names of its files and how they are read while somebody replaces them: `ca.crt` (the authorities to trust, two
while one takes over from another), `tls.crt` and `tls.key`. Without the variable connections are plain.
"""

import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import certifi

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


# ---- HTTPS: a gateway has a certificate, an agent has a key and needs none


def web_address(url: str) -> str:
    """An address of the run's gateways, `http://host:port`, as they are called: by HTTPS where the run has TLS."""
    return url if tls_dir() is None else url.replace("http:", "https:", 1)


def https_server() -> ssl.SSLContext | None:
    """For a server that asks its clients for no certificate, and shows the newest of its own. None: plain HTTP."""
    if (mine := identity()) is None:
        return None
    context = _showing(mine)

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if (newest := identity()) is not None:
            connection.context = _showing(newest)

    context.sni_callback = renew  # called without a name, too
    return context


def https_client() -> ssl.SSLContext | bool:
    """`verify` of a client that calls the run's gateways alone; False: plain HTTP."""
    mine = identity()
    return _trusting(mine.authorities) if mine is not None else False


@lru_cache(maxsize=4)
def _showing(mine: TlsIdentity) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # read from files only; those of the directory may have changed, and a key is not to lie in another
    with open(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb") as pem:
        pem.write(mine.key + b"\n" + mine.certificate)
        pem.flush()
        context.load_cert_chain(f"/proc/self/fd/{pem.fileno()}")
    return context


@lru_cache(maxsize=4)
def _trusting(authorities: bytes) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authorities.decode())


class TrustFile:
    """The machine's authorities and the run's in one file, which variables name to the HTTPS clients of agents.

    Agents are of any language, and may call other servers as well.
    """

    VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")

    def __init__(self) -> None:
        self._usual = Path(ssl.get_default_verify_paths().cafile or certifi.where()).read_bytes()
        self._folder = tempfile.TemporaryDirectory(prefix="areal-trust-")  # goes with this object
        self._place = Path(self._folder.name) / CA_FILE
        self._written = b""  # the run's
        self.renew()
        os.environ |= dict.fromkeys(self.VARIABLES, str(self._place))

    def renew(self) -> None:
        """Write it again where the run's authorities have changed."""
        if (mine := identity()) is not None and mine.authorities != self._written:
            whole = self._place.with_suffix(".new")
            whole.write_bytes(self._usual + b"\n" + mine.authorities)
            whole.replace(self._place)
            self._written = mine.authorities
