"""Toolchain discovery: compilers and interpreters of this machine, each asked for its version.

Programs are named by where they really are, behind every link and alternative.
"""

import glob
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from areal_judge.judge.languages.table import LANGUAGES, Language

_ELSEWHERE = ("/usr/local/go/bin", "/usr/lib/go/bin", "~/.cargo/bin", "/usr/local/cargo/bin", "/opt/java/openjdk/bin")
"""Where toolchains are put that no package manager installs."""

_Answer = tuple[str, Mapping[str, str], tuple[str, ...]]  # version, programs, what cells must see

_ASK_S = 20.0  # a JVM's first start on a busy machine


@dataclass(frozen=True)
class Toolchain:
    """One language on this machine. It is there when `missing` is empty, and may be used when `refused` is too."""

    language: str
    version: str = ""
    digest: str = ""  # of everything that decides what it makes
    programs: Mapping[str, str] = field(default_factory=dict)  # words of the table's argv → absolute paths
    readable: tuple[str, ...] = ()  # what cells must see beside the system's directories
    missing: str = ""  # what isn't here, and how to get it
    refused: str = ""  # why the sandbox of this machine won't run it

    @property
    def present(self) -> bool:
        return not self.missing

    @property
    def runnable(self) -> bool:
        return not self.missing and not self.refused


def find_toolchains() -> tuple[Toolchain, ...]:
    """Every language of the table, in its order, whether it is here or not. Takes about a second."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return tuple(pool.map(_found, LANGUAGES.values()))


def _found(language: Language) -> Toolchain:
    programs: dict[str, str] = {}
    for word, names in language.tools.items():
        path = next((path for path in map(_program, names) if path), None)
        if path is None:
            return _absent(language, f"no {names[0]}")
        programs[word] = path
    told = _DETAILS.get(language.name, _plain)(programs)
    if isinstance(told, str):
        return _absent(language, told)
    version, found, readable = told
    facts = [language.name, platform.machine(), version]
    facts += [f"{word}={path}:{os.stat(path).st_size}" for word, path in sorted(found.items()) if os.path.isfile(path)]
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]
    outside = tuple(path for path in readable if not f"{path}/".startswith(("/usr/", "/lib", "/bin/")))
    return Toolchain(language.name, version, digest, found, outside)


def _absent(language: Language, what: str) -> Toolchain:
    return Toolchain(language.name, missing=f"{what} here; install it (Debian: apt-get install {language.install})")


def _program(name: str) -> str | None:
    """Where a program is, on the PATH or in the usual places beside it."""
    places = [
        os.environ.get("PATH", os.defpath),
        *map(os.path.expanduser, _ELSEWHERE),
        *sorted(glob.glob("/usr/lib/jvm/*/bin")),
    ]
    found = shutil.which(name, path=os.pathsep.join(places))
    return found and os.path.abspath(found)


def _ask(*argv: str) -> str:
    """What a program says of itself; empty when it can't."""
    environment = {**os.environ, "LC_ALL": "C", "GOTOOLCHAIN": "local"}
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _plain(programs: Mapping[str, str]) -> _Answer | str:
    """A toolchain whose first program knows `--version`."""
    resolved = {word: os.path.realpath(path) for word, path in programs.items()}
    first = next(iter(resolved.values()))
    version = _first_line(_ask(first, "--version"))
    return (version, resolved, (first,)) if version else f"{first} doesn't run"


def _python(_: Mapping[str, str]) -> _Answer:
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return version, {"python": os.path.realpath(sys.executable)}, ()


def _java(programs: Mapping[str, str]) -> _Answer | str:
    """The JVM beside the compiler: a runtime of another version may be first on the PATH."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(programs["javac"])))
    java = f"{home}/bin/java"
    version = _first_line(_ask(java, "--version"))
    return (version, {"java": java}, (home,)) if version else f"{java} doesn't run"


def _go(programs: Mapping[str, str]) -> _Answer | str:
    go = os.path.realpath(programs["go"])
    version = _ask(go, "version")
    told = _ask(go, "env", "GOROOT", "GOTOOLDIR").splitlines()
    if not version or len(told) != 2:
        return f"{go} doesn't run"
    root, tools = map(os.path.realpath, told)
    words = {"go": go, "go_compile": f"{tools}/compile", "go_link": f"{tools}/link", "goroot": root}
    if not all(map(os.path.exists, words.values())):
        return f"no compiler in {tools}"
    return version.removeprefix("go version "), words, (root, tools)


def _rust(programs: Mapping[str, str]) -> _Answer | str:
    """What rustup's stand-in on the PATH would start: no cell has a rustup."""
    root = _ask(programs["rustc"], "--print", "sysroot")
    rustc = os.path.realpath(f"{root}/bin/rustc")
    version = _ask(rustc, "--version") if root and os.path.exists(rustc) else ""
    words = {"rustc": rustc, "linker": os.path.realpath(programs["linker"])}
    return (version, words, (os.path.realpath(root),)) if version else f"{programs['rustc']} doesn't run"


_DETAILS: Mapping[str, Callable[[Mapping[str, str]], _Answer | str]] = {
    "python": _python, "java": _java, "go": _go, "rust": _rust,
}  # fmt: skip
