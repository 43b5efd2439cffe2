"""The chart goes to a registry signed and with its bill of materials, and whoever changes it is found out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from kube.harness import tools
from support.redis_server import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "publish_chart"


def bill() -> dict[str, Any]:
    loader = SourceFileLoader("publish_chart", str(SCRIPT))
    spec = spec_from_loader("publish_chart", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    found: dict[str, Any] = module.bill()
    return found


def test_the_bill_names_every_pinned_package_and_every_image_the_same_each_time() -> None:
    made = bill()
    named = {one["name"]: one["version"] for one in made["components"]}
    pins = re.findall(r"^([^#=\s]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(pins) > 100
    assert dict(pins).items() <= named.items()
    assert {f"areal/{name}" for name in ("operator", "trainer", "sglang", "worker")} <= named.keys()
    assert made == bill()


@dataclass(frozen=True)
class Keys:
    """An OpenPGP key of a test's own."""

    secret: Path
    public: Path


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)

    def gpg(*arguments: str) -> bytes:
        command = ["gpg", "--homedir", str(home), "--batch", "--yes", "--passphrase", "", "--pinentry-mode", "loopback"]
        return subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=60).stdout

    try:
        gpg("--quick-gen-key", "Chart Tests <chart@example.org>", "rsa2048", "sign", "never")
        found = Keys(tmp_path / "signing.gpg", tmp_path / "public.gpg")
        found.secret.write_bytes(gpg("--export-secret-keys", "chart@example.org"))
        found.public.write_bytes(gpg("--export", "chart@example.org"))
    finally:
        subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, timeout=20)
    return found


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """A registry as Debian has it, on loopback."""
    port = free_port()
    config = tmp_path / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path}/blobs}}}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: 127.0.0.1:{port}}}\n")
    with (tmp_path / "registry.log").open("wb") as log:
        process = subprocess.Popen([tools.tool("docker-registry"), "serve", str(config)], stdout=log, stderr=log)
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "registry.log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}/charts"
    finally:
        process.terminate()
        process.wait(30)


def publish(registry: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{tools.tools_dir()}:{os.environ['PATH']}", "PLAIN_HTTP": "1", **variables}
    return subprocess.run(
        [sys.executable, str(SCRIPT), registry], env=environ, capture_output=True, text=True, timeout=120
    )


def pull(registry: str, into: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    into.mkdir(exist_ok=True)
    command = ["pull", f"oci://{registry}/areal", "--version=0.1.0", "--plain-http", f"--destination={into}"]
    return tools.helm(None, *command, *arguments, check=check)


@pytest.mark.kube_api
def test_what_was_pushed_is_signed_whole_and_installs(registry: str, keys: Keys, tmp_path: Path) -> None:
    said = publish(registry, KEY="Chart Tests", KEYRING=str(keys.secret))
    assert said.returncode == 0, said.stderr
    assert f"helm install areal oci://{registry}/areal --version 0.1.0 --verify" in said.stdout
    pull(registry, tmp_path / "got", "--verify", f"--keyring={keys.public}")
    package = tmp_path / "got" / "areal-0.1.0.tgz"
    with tarfile.open(package) as files:
        inside = files.extractfile("areal/sbom.cdx.json")
        assert inside is not None
        assert json.loads(inside.read()) == bill()
    shown = tools.helm(None, "template", "areal", str(package), "--set=global.imageRegistry=registry.test").stdout
    assert "kind: Deployment" in shown
    assert "CustomResourceDefinition" in shown

    package.write_bytes(package.read_bytes() + b"x")
    refused = tools.helm(None, "verify", str(package), f"--keyring={keys.public}", check=False)
    assert refused.returncode != 0, "a changed package is found out"


@pytest.mark.kube_api
def test_nothing_is_pushed_unsigned_unless_that_is_asked_for(registry: str, keys: Keys, tmp_path: Path) -> None:
    said = publish(registry)
    assert said.returncode == 1
    assert "KEY=" in said.stderr
    lost = publish(registry, KEY="Chart Tests", KEYRING=str(tmp_path / "none.gpg"))
    assert "gpg --export-secret-keys" in lost.stderr
    assert pull(registry, tmp_path / "got", check=False).returncode != 0, "nothing was pushed"
    assert publish(registry, UNSIGNED="1").returncode == 0
    pull(registry, tmp_path / "got")
    unsigned = pull(registry, tmp_path / "got", "--verify", f"--keyring={keys.public}", check=False)
    assert unsigned.returncode != 0
