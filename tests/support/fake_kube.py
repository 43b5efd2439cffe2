"""An API server of dicts that fails on demand.

Owns just enough of Kubernetes for the operator's runtime: versions, pages, watches with history, preconditions, apply
as a merge, expiry (410). `faults` are taken one a request of their kind. `fake_kube_fronts` has two fronts for it:
`MemoryTransport`, for virtual time, and `serve`, real HTTP.
tests/operator/operator/test_operator_runtime_contract.py runs the same cases against this server and a real one.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from areal_operator.runtime.transport import Request

Json = dict[str, Any]
On = Literal["list", "watch", "get", "write"]
Kind = Literal[
    "hang",  # the connection stays open and says nothing: half-open
    "break",  # the connection is reset
    "refuse",  # an HTTP error: `code`, `retry_after`
    "end",  # a good answer ends early
    "cut",  # the answer ends within a line
    "garbage",  # a line that is not JSON
    "unknown",  # a line of JSON that is no event
    "expire",  # 410: as an event of a watch, as the status of a list
    "huge",  # a bookmark of five million bytes, then all is well
    "bookmarks",  # bookmarks only, until the time is over; changes stay unsaid
    "lost",  # the next change is never said: no error, no sign
]
_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)


@dataclass
class Fault:
    """What goes wrong with one request of kind `on`, after `after` good events."""

    on: On
    kind: Kind
    after: int = 0
    code: int = 500
    retry_after: int = 0


@dataclass(frozen=True)
class Change:
    """One event of the history."""

    version: int
    plural: str
    type: str
    obj: Json


@dataclass
class FakeKube:
    """The server. `bookmark_s` is how often watches get a bookmark."""

    faults: list[Fault] = field(default_factory=list)
    bookmark_s: float = 60.0
    requests: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str, str], Json] = {}  # plural, namespace, name
        self.history: list[Change] = []
        self.floor = 0  # changes up to here are forgotten
        self._snapshots: dict[str, tuple[int, list[Json]]] = {}
        self._changed = asyncio.Event()
        self._uids = 0

    # What tests do behind the operator's back.

    def put(self, plural: str, obj: Json) -> Json:
        """Create or change."""
        metadata = obj["metadata"]
        key = (plural, metadata.get("namespace", ""), metadata["name"])
        old = self.objects.get(key)
        self.version += 1
        self._uids += 0 if old else 1
        made = copy.deepcopy(obj)
        made["metadata"]["uid"] = old["metadata"]["uid"] if old else f"uid-{self._uids}"
        made["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = made
        self._note(plural, "MODIFIED" if old else "ADDED", made)
        return made

    def remove(self, plural: str, namespace: str, name: str) -> Json | None:
        """Delete, if it is there."""
        old = self.objects.pop((plural, namespace, name), None)
        if old is not None:
            self.version += 1
            last = copy.deepcopy(old)
            last["metadata"]["resourceVersion"] = str(self.version)
            self._note(plural, "DELETED", last)
        return old

    def forget(self) -> None:
        """All history and every continue token are too old now."""
        self.floor = self.version
        self._snapshots.clear()

    def take(self, on: On) -> Fault | None:
        """The next fault for a request of this kind."""
        for fault in self.faults:
            if fault.on == on:
                self.faults.remove(fault)
                return fault
        return None

    # Requests.

    def answer(self, request: Request) -> tuple[int, Json]:
        """Status and body of a request that is not a watch."""
        match = _PATH.match(request.path)
        if match is None:
            return status(404, "NotFound", "no such path")
        plural, namespace, name = match["plural"], match["namespace"] or "", match["name"]
        if request.method == "POST":
            return self._create(plural, namespace, request.body or {})
        if name is None:
            return self._list(plural, namespace, request.query)
        old = self.objects.get((plural, namespace, name))
        match request.method:
            case "GET":
                return (200, old) if old else status(404, "NotFound", f"{plural} {name} not found")
            case "PATCH" | "PUT":
                return self._change(request, plural, namespace, name, old)
            case _:
                return self._delete(request.body or {}, plural, namespace, name, old)

    async def events(self, request: Request) -> AsyncIterator[Json]:
        """The events of a watch, until its time is over."""
        match = _PATH.match(request.path)
        assert match is not None
        plural, namespace = match["plural"], match["namespace"] or ""
        selector = request.query.get("labelSelector", "")
        at = int(request.query["resourceVersion"])
        loop = asyncio.get_running_loop()
        ends = loop.time() + float(request.query["timeoutSeconds"])
        due = False
        while True:
            if at < self.floor:
                yield {"type": "ERROR", "object": status(410, "Expired", "too old resource version")[1]}
                return
            horizon, changed = self.version, self._changed
            for change in [change for change in self.history if change.version > at]:
                in_scope = change.plural == plural and namespace in ("", change.obj["metadata"].get("namespace", ""))
                if in_scope and _selected(change.obj, selector):
                    yield {"type": change.type, "object": change.obj}
            at = horizon
            if due:
                yield bookmark(at)
            left = min(ends - loop.time(), self.bookmark_s)
            if left <= 0:
                return
            try:
                async with asyncio.timeout(left):
                    await changed.wait()
                due = False
            except TimeoutError:
                due = True

    def _note(self, plural: str, kind: str, obj: Json) -> None:
        self.history.append(Change(self.version, plural, kind, copy.deepcopy(obj)))
        self._changed.set()
        self._changed = asyncio.Event()

    def _list(self, plural: str, namespace: str, query: Mapping[str, str]) -> tuple[int, Json]:
        token = query.get("continue", "")
        if token:
            if token not in self._snapshots:
                return status(410, "Expired", "the continue token is too old")
            version, items = self._snapshots.pop(token)
        else:
            version = self.version
            selector = query.get("labelSelector", "")
            items = [
                obj
                for (kind, space, _name), obj in sorted(self.objects.items())
                if kind == plural and namespace in ("", space) and _selected(obj, selector)
            ]
        limit = int(query.get("limit", 0)) or len(items)
        metadata: Json = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = f"{version}-{len(self._snapshots)}-{len(items)}"
            self._snapshots[metadata["continue"]] = (version, items[limit:])
        return 200, {"metadata": metadata, "items": [bare(item) for item in items[:limit]]}

    def _create(self, plural: str, namespace: str, obj: Json) -> tuple[int, Json]:
        obj = {**obj, "metadata": {**obj["metadata"], "namespace": namespace}}
        if (plural, namespace, obj["metadata"]["name"]) in self.objects:
            return status(409, "AlreadyExists", f"{plural} {obj['metadata']['name']} already exists")
        return 201, self.put(plural, obj)

    def _change(self, request: Request, plural: str, namespace: str, name: str, old: Json | None) -> tuple[int, Json]:
        body = request.body or {}
        apply = "apply" in request.content_type
        if old is None and not apply:
            return status(404, "NotFound", f"{plural} {name} not found")
        asked = body.get("metadata", {})
        if old and asked.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            code, refusal = status(422, "Invalid", "metadata.uid: field is immutable")
            return code, {**refusal, "details": {"causes": [{"field": "metadata.uid"}]}}
        for precondition in ("uid", "resourceVersion"):
            if (
                asked.get(precondition)
                and (old or {"metadata": {}})["metadata"].get(precondition) != asked[precondition]
            ):
                return status(409, "Conflict", f"{precondition} is not {asked[precondition]}")
        new = body if request.method == "PUT" else merged(old or {}, body)
        new["metadata"] |= {"namespace": namespace} if namespace else {}
        if old is not None:
            ignored = ("resourceVersion", "uid")
            if _without(new, ignored) == _without(old, ignored):
                return 200, old
        if request.query.get("dryRun"):
            return 200, {**new, "metadata": {**new["metadata"], "uid": "dry", "resourceVersion": "0"}}
        return (200 if old else 201), self.put(plural, new)

    def _delete(self, options: Json, plural: str, namespace: str, name: str, old: Json | None) -> tuple[int, Json]:
        if old is None:
            return status(404, "NotFound", f"{plural} {name} not found")
        uid = options.get("preconditions", {}).get("uid")
        if uid and uid != old["metadata"]["uid"]:
            return status(409, "Conflict", f"the uid is {old['metadata']['uid']}")
        self.remove(plural, namespace, name)
        done = {"kind": "Status", "status": "Success", "details": {"name": name, "uid": old["metadata"]["uid"]}}
        return 200, done


def status(code: int, reason: str, message: str) -> tuple[int, Json]:
    """An error as the API writes it."""
    return code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def bookmark(version: int, padding: int = 0) -> Json:
    """A bookmark event."""
    metadata = {"resourceVersion": str(version), "annotations": {"padding": "x" * padding}}
    return {"type": "BOOKMARK", "object": {"kind": "Bookmark", "metadata": metadata}}


def bare(item: Json) -> Json:
    """As items of a list are: without apiVersion and kind."""
    return {key: copy.deepcopy(value) for key, value in item.items() if key not in ("apiVersion", "kind")}


def merged(old: Json, change: Json) -> Json:
    """JSON merge patch."""
    result = copy.deepcopy(old)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _without(obj: Json, fields: tuple[str, ...]) -> Json:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in fields}}


def _selected(obj: Json, selector: str) -> bool:
    return not selector or selector in (obj["metadata"].get("labels") or {})


# Faults, the same for both fronts.


class Hang(Exception):
    """Say nothing, and stay."""


class Break(Exception):
    """Reset the connection."""


def _on(request: Request) -> On:
    match = _PATH.match(request.path)
    if request.query.get("watch"):
        return "watch"
    if request.method == "GET":
        return "list" if match is not None and match["name"] is None else "get"
    return "write"


def respond(fake: FakeKube, request: Request) -> tuple[int, dict[str, str], bytes]:
    """The answer to anything but a watch, or its fault."""
    fake.requests.append(request)
    fault = fake.take(_on(request))
    headers: dict[str, str] = {}
    match fault.kind if fault else "":
        case "hang":
            raise Hang
        case "break":
            raise Break
        case "refuse" | "expire":
            assert fault is not None
            code = 410 if fault.kind == "expire" else fault.code
            if fault.retry_after:
                headers["Retry-After"] = str(fault.retry_after)
            return code, headers, json.dumps(status(code, "", "a fault")[1]).encode()
    code, body = fake.answer(request)
    answer = json.dumps(body).encode()
    match fault.kind if fault else "":
        case "cut" | "end":
            answer = answer[: len(answer) // 2]
        case "garbage" | "unknown":
            answer = b"<html>a proxy</html>"
    return code, headers, answer


async def watch(fake: FakeKube, request: Request) -> AsyncIterator[bytes]:
    """The lines of a watch, with its fault."""
    fake.requests.append(request)
    fault = fake.take("watch")
    said = 0
    if fault is not None and fault.kind == "bookmarks":
        async for event in fake.events(Request("GET", request.path, {**request.query, "labelSelector": "nothing"})):
            if event["type"] == "ERROR":
                yield json.dumps(event).encode() + b"\n"
            else:  # says nothing of versions either: those changes are still to come
                yield json.dumps(bookmark(int(request.query["resourceVersion"]))).encode() + b"\n"
        return
    if fault is not None and fault.after == 0:
        _strike(fault)
        for line in _wrong(fault, int(request.query["resourceVersion"])):
            yield line
        if fault.kind in ("end", "cut", "garbage", "unknown", "expire"):
            return
    async for event in fake.events(request):
        if fault is not None and fault.kind == "lost" and said >= fault.after and event["type"] != "BOOKMARK":
            fault = None
            continue
        line = json.dumps(event).encode() + b"\n"
        yield line[: len(line) // 2]
        yield line[len(line) // 2 :]
        said += 1
        if fault is not None and said == fault.after:
            _strike(fault)
            for line in _wrong(fault, int(event["object"]["metadata"].get("resourceVersion", 0))):
                yield line
            if fault.kind in ("end", "cut", "garbage", "unknown", "expire"):
                return


def _strike(fault: Fault) -> None:
    if fault.kind == "hang":
        raise Hang
    if fault.kind == "break":
        raise Break


def _wrong(fault: Fault, version: int) -> list[bytes]:
    match fault.kind:
        case "cut":
            return [b'{"type": "MODIFIED", "object": {"metada']
        case "garbage":
            return [b"<html>502 Bad Gateway</html>\n"]
        case "unknown":
            return [b'{"type": "SURPRISE", "object": {"metadata": {"name": "x", "resourceVersion": "1"}}}\n']
        case "expire":
            return [json.dumps({"type": "ERROR", "object": status(410, "Expired", "too old")[1]}).encode() + b"\n"]
        case "huge":
            return [json.dumps(bookmark(version, 5_000_000)).encode() + b"\n"]
    return []
