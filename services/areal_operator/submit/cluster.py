"""Blocking client of a cluster: get, apply, delete, watch one object; run a program in a pod.

Owns the connection, and the channel to a program over the API server's exec websocket. Objects are plain dicts; what
the server refuses is explained by `explanation`.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from areal.distribution import install
from areal.errors import ArealError, ConfigError, InfraError

from areal_operator.kube.errors import APPLY, ApiError, Conflict, apply_body, apply_query, conflicts, error_of
from areal_operator.kube.resources import CLUSTER_RUNTIMES, CONFIGMAPS, EVENTS, NODES, PODS, PVCS, RLJOBS, RUNTIMES
from areal_operator.submit.manifests import MANAGER, Json

_MERGE = "application/merge-patch+json"
_CONNECT_S, _READ_S = 5.0, 60.0
_WATCH_S = 30  # a watch is asked again after this long: proxies cut idle connections
_KINDS = {each.kind: each for each in (CONFIGMAPS, PVCS, PODS, EVENTS, NODES, RLJOBS, RUNTIMES, CLUSTER_RUNTIMES)}
Found = TypeVar("Found")
Query = Sequence[tuple[str, str]]
_KEY = re.compile(r"podTemplate\[(\w+)\]")  # as a server writes a field of what it has as a mapping
_OUR_KINDS = ("RLJob", "RLRuntime", "ClusterRLRuntime")
_RIGHTS = (
    "Ask whoever runs the cluster for the right: in its namespace `areal submit` applies configmaps, "
    "persistentvolumeclaims and rljobs, creates, watches and deletes pods, and creates pods/exec."
)


class Cluster:
    """One connection. Made by `connect`."""

    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self.namespace = namespace
        """The namespace of the kubeconfig's context."""

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """One object; None when there is none."""
        return self._call("GET", kind, namespace, name, absent_ok=True) or None

    def all_of(self, kind: str, namespace: str = "", *, selector: str = "") -> list[Json]:
        """All objects of a kind, of those labels if any are given."""
        query = [("labelSelector", selector)] if selector else []
        return list(self._call("GET", kind, namespace, "", query=query)["items"])

    def apply(self, obj: Json, *, force: bool = True, dry_run: bool = False) -> Json:
        """Server-side apply; raises ConfigError with the server's words when it refuses the object.

        Without `force`, fields that others set to other values are a TakenError.
        """
        metadata = obj["metadata"]
        query = list(apply_query(MANAGER, force=force, dry_run=dry_run).items())
        return self._call("PATCH", obj["kind"], metadata["namespace"], metadata["name"], query=query, body=obj)

    def merge(self, kind: str, namespace: str, name: str, patch: Json, *, manager: str) -> Json:
        """Merge patch (RFC 7386) of one object; raises ConfigError with the server's words when it refuses."""
        query = [("fieldManager", manager)]
        return self._call("PATCH", kind, namespace, name, query=query, body=patch, content_type=_MERGE)

    def create(self, obj: Json) -> Json:
        """POST."""
        return self._call("POST", obj["kind"], obj["metadata"]["namespace"], "", body=obj)

    def delete(self, obj: Json, grace_s: int | None = None) -> None:
        """Deletes what `obj` names; one that is gone is fine. A pod gets `grace_s` to end, its own unless given."""
        metadata = obj["metadata"]
        query = [] if grace_s is None else [("gracePeriodSeconds", f"{grace_s}")]
        self._call("DELETE", obj["kind"], metadata["namespace"], metadata["name"], query=query, absent_ok=True)

    def until(
        self,
        kind: str,
        namespace: str,
        name: str,
        probe: Callable[[Json | None], Found | None],
        *,
        timeout_s: float | None,
        late: Callable[[Json | None], ArealError],
    ) -> Found:
        """Watch one object until `probe` of it (None: it isn't there) is not None; that is returned.

        Args:
            late: makes the error that is raised after `timeout_s`, from the object as last seen.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        query = [("fieldSelector", f"metadata.name={name}")]
        while True:
            page = self._call("GET", kind, namespace, "", query=query)
            seen: Json | None = next(iter(page["items"]), None)
            if (found := probe(seen)) is not None:
                return found
            remaining = _WATCH_S if deadline is None else min(_WATCH_S, int(deadline - time.monotonic()) + 1)
            if deadline is not None and time.monotonic() >= deadline:
                raise late(seen)
            watch = [*query, ("watch", "1"), ("timeoutSeconds", str(max(1, remaining)))]
            watch.append(("resourceVersion", page["metadata"]["resourceVersion"]))
            for event in self._stream(kind, namespace, watch):
                if event["type"] == "ERROR":
                    break  # the version is too old: list again
                seen = None if event["type"] == "DELETED" else event["object"]
                if (found := probe(seen)) is not None:
                    return found

    def program(self, namespace: str, pod: str, container: str, command: list[str]) -> "PodChannel":
        """Start a program in a pod."""
        from kubernetes.stream import stream

        options = {"stdin": True, "stdout": True, "stderr": True, "tty": False}
        with self._explained(f"run a program in the pod {pod}", "Pod", namespace):
            socket = stream(
                self._core().connect_get_namespaced_pod_exec,
                pod,
                namespace,
                container=container,
                command=command,
                **options,
                _preload_content=False,
                binary=True,
            )
        return PodChannel(socket)

    def port(self, namespace: str, pod: str, port: int) -> Any:
        """A connection to a port of a pod's loopback, as a socket. Safe from any thread."""
        from kubernetes.stream import portforward

        with self._explained(f"reach port {port} of the pod {pod}", "Pod", namespace):
            opened = portforward(self._core().connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))
        return opened.socket(port)

    def _core(self) -> Any:
        """With a client of its own: opening a websocket changes the client for the time of the call."""
        from kubernetes.client import ApiClient, CoreV1Api

        return CoreV1Api(ApiClient(self._api.configuration))

    def _call(
        self,
        method: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        query: Query = (),
        body: Json | None = None,
        absent_ok: bool = False,
        content_type: str = "",
    ) -> Json:
        """The answer's object; empty for one that may be absent, and is."""
        verb = "change" if content_type == _MERGE else _VERBS[method]
        what = f"{verb} {kind} {name}".rstrip()
        with self._explained(what, kind, namespace, absent_ok=absent_ok):
            kind_of_body = content_type or (APPLY if method == "PATCH" else "application/json")
            answer = self._request(method, kind, namespace, name, query, body, kind_of_body)
            answer.read()
            return dict(json.loads(answer.data))
        return {}

    def _stream(self, kind: str, namespace: str, query: Query) -> Iterator[Json]:
        with self._explained(f"watch {kind}", kind, namespace):
            answer = self._request("GET", kind, namespace, "", query, None, "application/json")
            rest = b""
            try:
                for chunk in answer.response.stream(decode_content=False):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (json.loads(line) for line in lines if line)
            finally:
                answer.response.close()

    def _request(
        self, method: str, kind: str, namespace: str, name: str, query: Query, body: Json | None, content_type: str
    ) -> Any:
        """An answer of which the body is not read yet."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        answer = self._api.call_api(
            *self._api.param_serialize(
                method=method,
                resource_path=_KINDS[kind].path(namespace, name),
                query_params=[*query],
                header_params=headers,
                body=apply_body(body) if content_type == APPLY and body is not None else body,
                auth_settings=["BearerToken"],
            ),
            _request_timeout=(_CONNECT_S, _READ_S),
        )
        if not 200 <= answer.status <= 299:
            from kubernetes.client.exceptions import ApiException

            answer.read()
            raise ApiException(http_resp=answer)
        return answer

    @contextmanager
    def _explained(self, what: str, kind: str, namespace: str, *, absent_ok: bool = False) -> Iterator[None]:
        """Turn what the client library raises into our errors. `absent_ok`: nothing is raised where no object is."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as refusal:
            # A websocket that isn't opened has a reason only.
            error = api_error(refusal.status or 0, refusal.body or refusal.reason)
            if found := conflicts(error):
                raise TakenError(what, found) from None
            if (shown := explanation(error, what, kind, namespace, absent_ok=absent_ok)) is not None:
                raise shown from None
        except (HTTPError, OSError) as error:
            raise InfraError(
                f"can't {what}: no API server answers at {self._api.configuration.host} ({_root(error)})",
                fix="Check that the cluster runs, and kubeconfig and context: `kubectl cluster-info`.",
            ) from error


class MissingRight(ConfigError):
    """The API server doesn't let this user do it."""


class TakenError(ConfigError):
    """An apply without force would take fields over from other field managers."""

    def __init__(self, what: str, taken: tuple[Conflict, ...]) -> None:
        fields = "; ".join(f"{one.field} is set by {one.manager}" for one in taken)
        super().__init__(
            f"can't {what}: {fields}",
            fix="Change it there, or submit with --take-over to own these fields from now on.",
        )
        self.taken = taken


def api_error(status: int, body: Any) -> ApiError:
    """The typed error of an answer of 400 or more, whose body may be a Status or any text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = {}
    found = parsed if isinstance(parsed, dict) else {}
    error = error_of(status, {**found, "message": found.get("message") or text.strip()}, what="")
    error.message = error.message.removeprefix(": ")
    return error


def _root(error: BaseException) -> str:
    while error.__cause__ is not None or getattr(error, "reason", None) is not None:
        inner = getattr(error, "reason", None) or error.__cause__
        if not isinstance(inner, BaseException):
            break
        error = inner
    return str(error)


_VERBS = {"GET": "read", "PATCH": "apply", "POST": "create", "DELETE": "delete"}


def connect(kubeconfig: Path | None, context: str | None) -> Cluster:
    """The cluster of a kubeconfig ($KUBECONFIG or ~/.kube/config unless given), or the one that this pod is in."""
    try:
        from kubernetes import client
        from kubernetes import config as untyped
    except ImportError:
        raise ConfigError(
            "the Kubernetes client is not installed", fix=f"Install it: `{install('operator')}`."
        ) from None
    config: Any = untyped
    configuration = client.Configuration()
    named = str(kubeconfig) if kubeconfig is not None else None
    try:
        config.load_kube_config(config_file=named, context=context, client_configuration=configuration)
        there, current = config.list_kube_config_contexts(config_file=named)
        contexts = {each["name"]: each for each in there}
        chosen = contexts[context] if context else current
        namespace = chosen["context"].get("namespace", "default")
    except (config.ConfigException, OSError, KeyError, TypeError, ValueError) as error:
        if named is None and context is None and _in_a_pod(config, configuration):
            namespace = _NAMESPACE_FILE.read_text().strip()
        else:
            raise ConfigError(
                f"no cluster to submit to: {error}",
                fix="Name a kubeconfig with --kubeconfig or $KUBECONFIG, and one of its contexts with --context.",
            ) from None
    configuration.retries = False
    return Cluster(client.ApiClient(configuration), namespace)


_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _in_a_pod(config: Any, configuration: Any) -> bool:
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        return False
    return True


def explanation(error: ApiError, what: str, kind: str, namespace: str, *, absent_ok: bool = False) -> ArealError | None:
    """The error to show for a refusal of `what`; None for an object that may be absent."""
    status, reason, details = error.status, error.reason, error.details
    said = _KEY.sub(r"podTemplate.\1", error.message)
    if status == 404 and not details and kind in _OUR_KINDS:
        return ConfigError(
            f"can't {what}: the cluster knows no {kind}",
            fix="Install the chart: `helm install areal charts/areal -n areal-system …`, as docs/install.md says.",
        )
    if status == 404 and details.get("kind") == "namespaces":
        return ConfigError(
            f"there is no namespace {namespace!r}",
            fix=f"Create it with `kubectl create namespace {namespace}`, or name another with -n.",
        )
    if status == 404 and absent_ok:
        return None
    if status == 401:
        return ConfigError(
            f"can't {what}: the cluster doesn't know who you are",
            fix="Log in again, or check the user of the kubeconfig's context.",
        )
    if status == 403 and reason == "Forbidden" and " cannot " in said:
        return MissingRight(f"can't {what}: {said}", fix=_RIGHTS)
    if status in (400, 403, 409, 422):
        return ConfigError(f"can't {what}: {said}", fix="Correct what the message names.")
    return InfraError(f"can't {what}: the API server answered {status}: {said}", fix="Try again.")


_STDERR, _ERROR = 2, 3  # channels of the exec protocol
_FRAME_BYTES = 128 << 10
_LONGEST = 800
_LAST_WORDS_S = 2.0  # for words on the way: who refuses sends them before it closes, so they are here or nearly
_AGAIN = "Give the command again: what arrived is kept, only the rest is sent."


class PodChannel:
    """Standard input and output of the program. Closing it ends the program."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket

    def __enter__(self) -> "PodChannel":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Send to standard input; blocks while the other side is slower. Raises InfraError when it is gone."""
        try:
            for start in range(0, len(data), _FRAME_BYTES):
                self._socket.write_stdin(data[start : start + _FRAME_BYTES])
        except Exception as error:  # the websocket library and the sockets below it raise many kinds
            raise self._broken(error) from error

    def line(self, timeout_s: float) -> bytes:
        """The next line of standard output."""
        try:
            line: bytes = self._socket.readline_stdout(timeout=timeout_s)
        except Exception as error:  # as above
            raise self._broken(error) from error
        if not line:
            late = self._socket.is_open()
            gone = "the pod didn't answer in time" if late else f"the program in the pod ended{self._last_words()}"
            raise InfraError(gone, fix=_AGAIN)
        return line

    def _broken(self, error: Exception) -> InfraError:
        """A write fails while the words that say why wait to be read: they come first, else the socket's own."""
        self._read_out()
        said = self._last_words() or f": {error}"
        return InfraError(f"the connection to the pod broke{said}", fix=_AGAIN)

    def _read_out(self) -> None:
        """Read what is left, to the end of the connection, and be done with it."""
        deadline = time.monotonic() + _LAST_WORDS_S
        try:
            while self._socket.is_open() and (left := deadline - time.monotonic()) > 0:
                self._socket.update(timeout=left)
        except Exception:  # the end, in one of its many kinds; what came before it is kept
            pass
        finally:
            self._socket.close()

    def _last_words(self) -> str:
        """Why it ended: what the API server says, and what the program wrote to standard error."""
        parts = (self._socket.read_channel(_ERROR), self._socket.read_channel(_STDERR))
        said = [_message(part) for part in parts if part]
        return "".join(f": {text}" for text in said if text)[-_LONGEST:]


def _message(said: bytes) -> str:
    """The message of a Status, or the text itself."""
    try:
        return str(json.loads(said).get("message", ""))
    except ValueError:
        return said.decode(errors="replace").strip()
