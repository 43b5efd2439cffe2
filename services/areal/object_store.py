"""Client of an object store — S3, Google Cloud Storage, Azure — by the library obstore.

Owns how an address becomes a connection, where credentials come from, how long is waited, and what a refusal means. A
key that is named by its content is written once and never again; one that changes is replaced only as it was read.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from areal.distribution import missing_package
from areal.errors import ArealError, ConfigError, DataError, InfraError

SCHEMES = ("s3://", "gs://", "az://")
_ENDPOINT = re.compile("endpoint|google_base_url", re.IGNORECASE)
_GOOGLE_KEY = "google_service_account_key"
_CREDENTIAL = re.compile("invalid access key|service account file|SAS query|account must be", re.IGNORECASE)
_PART_BYTES = 16 << 20  # of a range that is read
_REQUEST_S = 120  # a part at 150 kB/s
_RETRIES: Any = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"base": 2, "init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5)},
}


def store_address(source: str | os.PathLike[str]) -> str | None:
    """An address in an object store, also one that lost a slash when it was taken for a path; None for a path."""
    scheme, colon, rest = str(source).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if colon and f"{scheme}://" in SCHEMES else None


@dataclass(frozen=True)
class ObjectStore:
    """Objects below one address. Every method raises ConfigError for what its owner must correct, InfraError for what
    may pass."""

    url: str
    _connection: Any

    @classmethod
    def connect(cls, url: str, credentials: Path | None = None) -> "ObjectStore":
        """Objects below `url`, by the credentials in a directory, else by those of the environment. No request is made.

        Each file of the directory is one option under its name, as a mounted Secret has them; what obstore reads from
        the environment are the same names: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS ….
        """
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise missing_package(error) from None
        with _refusals(url):
            given: Any = {} if credentials is None else _options(credentials)
            options = {**os.environ, **given}.items()
            plain = any(_ENDPOINT.search(name) and value.startswith("http:") for name, value in options)
            client: Any = {"timeout": f"{_REQUEST_S}s", "connect_timeout": "5s", "allow_http": plain}
            return cls(url, from_url(url, config=given, client_options=client, retry_config=_RETRIES))

    def read(self, key: str) -> tuple[bytes, str] | None:
        """An object's bytes, and the mark of its state for `replace`; None when there is none."""
        import obstore

        with _refusals(self.url):
            try:
                found = obstore.get(self._connection, key)
                return bytes(found.bytes()), f"{found.meta['e_tag']} {found.meta['version']}"
            except FileNotFoundError:
                return None

    def stat(self, key: str) -> tuple[int, str] | None:
        """Bytes of an object, and its tag, another one for each state; None when there is none."""
        import obstore

        with _refusals(self.url):
            try:
                return _size_and_tag(obstore.head(self._connection, key))
            except FileNotFoundError:
                return None

    def replace(self, key: str, data: bytes, mark: str | None) -> bool:
        """Write an object if its state is still `mark`, None for none; answers whether it is ours now.

        An answer may get lost after the write, and the library then asks again and is refused by its own success: so
        whatever the answer was, the object's bytes decide.
        """
        import obstore
        from obstore import exceptions

        # Google's store compares the version, others the tag.
        mode: Any = "create" if mark is None else dict(zip(("e_tag", "version"), mark.split(), strict=True))
        try:
            obstore.put(self._connection, key, data, mode=mode, use_multipart=False)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            found = self.read(key)
            return found is not None and found[0] == data
        except Exception as error:
            with _refusals(self.url):
                if (found := self.read(key)) is None or found[0] != data:
                    raise error
        return True

    def write(self, key: str, blocks: Callable[[], Iterable[bytes]], size: int) -> bool:
        """Write an object of `size` bytes, few enough for memory, that is named by its content; answers whether it
        wasn't there."""
        import obstore

        if (there := self.stat(key)) is not None and there[0] == size:
            return False
        with _refusals(self.url):
            obstore.put(self._connection, key, b"".join(blocks()), use_multipart=False)
        return True

    def blocks(self, key: str, start: int, size: int) -> Iterator[bytes]:
        """An object's bytes from `start` on. Raises DataError for an object that isn't there, or not that long."""
        import obstore

        while start < size:
            length = min(_PART_BYTES, size - start)
            with _refusals(self.url):
                try:
                    block = bytes(obstore.get_range(self._connection, key, start=start, length=length))
                except FileNotFoundError:
                    raise DataError(f"{self.url} has no object {key}") from None
            if len(block) != length:
                raise DataError(f"{self.url}: the object {key} has no {size} bytes")
            yield block
            start += length

    def entries(self, prefix: str) -> dict[str, tuple[int, str]]:
        """Objects below a prefix, by key, as `stat` tells of each: a store may list late what was written just now."""
        import obstore

        with _refusals(self.url):
            found = obstore.list(self._connection, prefix)
            return {str(entry["path"]): _size_and_tag(entry) for page in found for entry in page}

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that isn't there is none."""
        import obstore

        with _refusals(self.url):
            doomed = list(keys)
            try:
                obstore.delete(self._connection, doomed)
            except FileNotFoundError:  # Google's store tells of one that isn't there, and the rest may still be
                for key in doomed:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._connection, key)


def _size_and_tag(entry: Any) -> tuple[int, str]:
    return int(entry["size"]), str(entry["e_tag"])


def _options(directory: Path) -> dict[str, str]:
    """The files of a mounted Secret, whose own are hidden."""
    try:
        files = [path for path in sorted(directory.iterdir()) if path.is_file() and not path.name.startswith(".")]
        texts = ((path.name.lower(), path.read_text(encoding="utf-8").strip()) for path in files)
        # A Google key under any name, as `kubectl create secret --from-file` makes it: taken for the path of a key, it
        # would stand in the error.
        return {_GOOGLE_KEY if text.startswith("{") else name: text for name, text in texts}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the credentials of the store can't be read: {error}", fix="See to the Secret of storage.storeSecret."
        ) from None


@contextmanager
def _refusals(url: str) -> Iterator[None]:
    """Errors of obstore in our words: its own have a dump of its structures behind the first line."""
    from obstore import exceptions

    secret = "storage.storeSecret, or the environment of a run on one machine"
    try:
        yield
    except ArealError:
        raise
    except (exceptions.UnauthenticatedError, exceptions.PermissionDeniedError) as error:
        fix = f"Give credentials that may read, write and delete there: {secret}; and set this machine's clock."
        raise ConfigError(f"{url} refuses: {_first(error)}", fix=fix) from None
    except exceptions.UnknownConfigurationKeyError as error:
        raise ConfigError(f"{url}: {_first(error)}", fix=f"Correct the names of its options: {secret}.") from None
    except FileNotFoundError as error:
        raise ConfigError(f"{url}: {_first(error)}", fix="Make the bucket, or correct its name.") from None
    except exceptions.BaseError as error:
        if _CREDENTIAL.search(_first(error)):
            raise ConfigError(f"{url}: {_first(error)}", fix=f"Correct its credentials: {secret}.") from None
        fix = "Look at the store, the network and its endpoint; what is missing is copied when it answers again."
        raise InfraError(f"{url} can't be reached: {_first(error)}", fix=fix) from None
    except BaseException as error:  # a panic of the library's is no Exception
        if "InvalidHeaderValue" not in str(error):
            raise
        fix = f"Take line ends and the like out of its credentials: {secret}."
        raise ConfigError(f"{url}: a credential is no text that may be sent", fix=fix) from None


def _first(error: Exception) -> str:
    return str(error).partition("\n")[0].partition("{")[0].strip()[:300]  # behind a brace there may be a key
