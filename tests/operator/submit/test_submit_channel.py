"""What is heard when the API server ends the connection to a pod: its own words, whoever notices first."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from areal.errors import InfraError
from areal_operator.submit.cluster import PodChannel

_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_REFUSAL = {"status": "Failure", "message": "error dialing backend: connection refused"}
_CLOSE = b"\x88\x02\x03\xe8"


def frame(channel: int, text: bytes) -> bytes:
    """A websocket frame of one channel of the exec protocol."""
    data = bytes([channel]) + text
    return b"\x82" + (bytes([len(data)]) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")) + data


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    key, made = folder / "key.pem", folder / "certificate.pem"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*new, "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", made], check=True)
    return made, key


@pytest.fixture(params=["http", "https"])
def ending(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Iterator[Callable[[bytes], PodChannel]]:
    """A channel to a server that says these bytes and has closed the connection."""
    from kubernetes.client import Configuration
    from kubernetes.stream.ws_client import WSClient

    listening = socket.create_server(("127.0.0.1", 0))
    serving: list[threading.Thread] = []

    def serve(said: bytes) -> None:
        connection, _ = listening.accept()
        if request.param == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += connection.recv(4096)
            found = re.search(rb"(?i)sec-websocket-key: *(\S+)", asked)
            assert found is not None
            accept = base64.b64encode(hashlib.sha1(found[1] + _ACCEPT).digest())
            head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            connection.sendall(head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + said)

    def opened(said: bytes) -> PodChannel:
        serving.append(threading.Thread(target=serve, args=(said,)))
        serving[0].start()
        configuration: Any = Configuration()
        configuration.verify_ssl = False
        url = f"{request.param.replace('http', 'ws')}://127.0.0.1:{listening.getsockname()[1]}/exec"
        client = WSClient(configuration, url, {}, True, binary=True)
        serving[0].join(timeout=60)
        return PodChannel(client)

    with listening:
        yield opened


def write_until_it_breaks(channel: PodChannel) -> None:
    for _ in range(1000):  # the first ones arrive at a closed socket before anybody here is told so
        channel.write(b"x" * 1000)


def test_who_writes_to_a_closed_connection_hears_why_it_was_closed(ending):
    with ending(frame(3, json.dumps(_REFUSAL).encode()) + _CLOSE) as channel:
        with pytest.raises(InfraError, match="error dialing backend: connection refused") as caught:
            write_until_it_breaks(channel)
        assert "Give the command again" in caught.value.fix


def test_what_the_program_wrote_to_standard_error_is_said_too(ending):
    with (
        ending(frame(2, b"No space left on device\n") + frame(3, b"command terminated with exit code 1")) as channel,
        pytest.raises(InfraError, match=r"exit code 1: No space left on device"),
    ):
        write_until_it_breaks(channel)


def test_a_connection_that_ends_without_a_word_is_said_as_it_is(ending):
    with ending(b"") as channel, pytest.raises(InfraError, match="the connection to the pod broke"):
        write_until_it_breaks(channel)


def test_who_waits_for_a_line_hears_why_none_comes(ending):
    with (
        ending(frame(3, json.dumps(_REFUSAL).encode()) + _CLOSE) as channel,
        pytest.raises(InfraError, match="error dialing backend: connection refused"),
    ):
        channel.line(60.0)
