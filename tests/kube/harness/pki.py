"""The certificates of a control plane that lives for one test run.

One authority, one server certificate for loopback, one client certificate a component, one key for service accounts;
all in one folder, two days valid. Made with `openssl`, elliptic keys: they take milliseconds.
"""

from __future__ import annotations

import json
from pathlib import Path

from kube.harness.tools import run

SERVER_NAMES = (
    "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"
)
NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Pki:
    """A folder of certificates and kubeconfigs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        run(["openssl", "req", "-x509", *NEW_KEY, "-days", "2", "-subj", "/CN=areal-test-authority", *self._out("ca")])
        self.issue("apiserver", "/CN=kube-apiserver", f"subjectAltName={SERVER_NAMES}\nextendedKeyUsage=serverAuth")
        run(["openssl", "genrsa", "-out", self.path("service-accounts.key"), "2048"])
        run(
            [
                "openssl",
                "rsa",
                "-in",
                self.path("service-accounts.key"),
                "-pubout",
                "-out",
                self.path("service-accounts.pub"),
            ]
        )

    def path(self, name: str) -> str:
        """One file of the folder."""
        return str(self.directory / name)

    def issue(self, name: str, subject: str, extensions: str = "extendedKeyUsage=clientAuth") -> None:
        """Makes `<name>.key` and `<name>.crt`; `subject` as `/O=<group>/CN=<user>`."""
        extension_file = self.directory / f"{name}.ext"
        extension_file.write_text(extensions)
        run(
            [
                "openssl",
                "req",
                *NEW_KEY,
                "-subj",
                subject,
                "-keyout",
                self.path(f"{name}.key"),
                "-out",
                self.path(f"{name}.csr"),
            ]
        )
        command = [
            "openssl",
            "x509",
            "-req",
            "-days",
            "2",
            "-in",
            self.path(f"{name}.csr"),
            "-out",
            self.path(f"{name}.crt"),
        ]
        command += [
            "-CA",
            self.path("ca.crt"),
            "-CAkey",
            self.path("ca.key"),
            "-CAcreateserial",
            "-extfile",
            str(extension_file),
        ]
        run(command)

    def kubeconfig(self, name: str, server: str, user: dict[str, str] | None = None) -> Path:
        """`<name>.kubeconfig` for a client certificate of that name, or for `user` (a `token`)."""
        who = user or {"client-certificate": self.path(f"{name}.crt"), "client-key": self.path(f"{name}.key")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": self.path("ca.crt")}}],
            "users": [{"name": name, "user": who}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path

    def _out(self, name: str) -> list[str]:
        return ["-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.crt")]
