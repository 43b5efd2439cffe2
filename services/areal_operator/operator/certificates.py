"""A job's own authority, and the certificates that it signs, as values: what is due is written by the effects.

Owns the order by which nobody is refused while an authority is replaced: all trust both, then all show certificates of
the new one, then the old one goes. A step begins when every Secret has held the one before for `SPREAD_S`: longer than
kubelets take. Certificates are renewed after two thirds of their life. Pure but for the random keys.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address

from areal.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

STATE_KEY = "authorities.json"
SPREAD_S = 3600.0
_LEAF_S = 30 * 86400.0
_AUTHORITY_S = 360 * 86400.0  # replaced after half of it
_BACKDATED_S = 300.0  # clocks of nodes differ

Pair = tuple[str, str]
"""A certificate and its key, PEM."""


@dataclass(frozen=True)
class AuthorityState:
    """The authorities that all trust, the oldest first; which of them signs; when something was last written."""

    authorities: tuple[Pair, ...]
    signing: int
    since: float

    @classmethod
    def parse(cls, text: str) -> "AuthorityState":
        """What `text` wrote. Raises ValueError."""
        authorities, *others = json.loads(text)
        return cls(tuple(map(tuple, authorities)), *others)

    def text(self) -> str:
        """For the Secret."""
        return json.dumps([self.authorities, self.signing, self.since])


def due(
    state: AuthorityState | None, held: Mapping[str, Mapping[str, str]], names: Mapping[str, Sequence[str]], now: float
) -> tuple[AuthorityState, dict[str, dict[str, str]]]:
    """The state to keep, and the Secrets to write after it, by holder, given those that are there and the DNS names."""
    state = state or AuthorityState((made("authority", now, _AUTHORITY_S),), 0, now)
    signer = state.authorities[state.signing]
    trusted = "".join(crt for crt, _ in state.authorities)
    wrong: dict[str, dict[str, str]] = {}
    for who, called in names.items():
        has = held.get(who) or {}
        good = _good(has, signer[0], called, now)
        if good and has[CA_FILE] == trusted:
            continue
        crt, key = (has[CERTIFICATE_FILE], has[KEY_FILE]) if good else made(who, now, _LEAF_S, signer, called)
        wrong[who] = {CA_FILE: trusted, CERTIFICATE_FILE: crt, KEY_FILE: key}
    if wrong:
        return replace(state, since=now), wrong
    if now - state.since < SPREAD_S or (following := _following(state, now)) is None:
        return state, {}
    return due(following, held, names, now)


def _following(state: AuthorityState, now: float) -> AuthorityState | None:
    if state.signing == 0 and len(state.authorities) == 2:
        return replace(state, signing=1, since=now)
    if state.signing == 1:
        return AuthorityState(state.authorities[1:], 0, now)
    if not _lived(state.authorities[0][0], 1 / 2, now):
        return None
    return AuthorityState((*state.authorities, made("authority", now, _AUTHORITY_S)), 0, now)


def _good(has: Mapping[str, str], authority: str, called: Sequence[str], now: float) -> bool:
    try:
        shown = x509.load_pem_x509_certificate(has[CERTIFICATE_FILE].encode())
        shown.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.encode()))
        listed = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except Exception:  # damaged, or of another authority: cryptography has a class for each, and all mean the same
        return False
    same = listed.get_values_for_type(x509.DNSName) == [*called]
    return same and {CA_FILE, KEY_FILE} <= has.keys() and not _lived(has[CERTIFICATE_FILE], 2 / 3, now)


def _lived(certificate: str, share: float, now: float) -> bool:
    shown = x509.load_pem_x509_certificate(certificate.encode())
    begins, ends = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
    return now >= begins + share * (ends - begins)


def made(who: str, now: float, life_s: float, signer: Pair | None = None, called: Sequence[str] = ()) -> Pair:
    """A new key and its certificate: an authority's, which signs itself, or one that `signer` signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{who} {serial:x}"[:40])])
    issuer, signing = subject, key
    if signer is not None:
        issuer = x509.load_pem_x509_certificate(signer[0].encode()).subject
        signing = serialization.load_pem_private_key(signer[1].encode(), None)  # type: ignore[assignment]
    begins = datetime.fromtimestamp(now - _BACKDATED_S, UTC)
    built = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), serial, begins, begins + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False)
    )
    if signer is None:
        signs = (False, False, False, False, False, True, True, False, False)  # certificates and revocations alone
        built = built.add_extension(x509.KeyUsage(*signs), True)
    else:
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        places = [*(x509.DNSName(name) for name in called), x509.IPAddress(IPv4Address("127.0.0.1"))]
        built = built.add_extension(x509.ExtendedKeyUsage(usages), False)
        built = built.add_extension(x509.SubjectAlternativeName(places), False)
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    text = key.private_bytes(pem, form, serialization.NoEncryption()).decode()
    return built.sign(signing, hashes.SHA256()).public_bytes(pem).decode(), text
