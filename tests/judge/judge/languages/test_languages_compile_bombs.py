"""Sources that attack whoever compiles them: held, in time, and judged as what they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.table import COMPILE_LIMITS
from areal_judge.judge.languages.toolchains import Compilation, Toolchains
from areal_judge.judge.values import Status, Submission
from areal_judge.sandbox.host.runner import Sandbox
from judge.languages.conftest import need

pytestmark = [pytest.mark.component, pytest.mark.nightly, pytest.mark.asyncio(loop_scope="module")]
SHORT = replace(COMPILE_LIMITS, wall_s=12.0, cpu_s=2.0, memory_bytes=512 << 20)
SECRET = "areal-canary-5f1c9e"


@pytest.fixture
def quick(cells: Sandbox, found: tuple[Toolchain, ...], store: PreparedFiles) -> Toolchains:
    """Toolchains whose compilers get little."""
    return Toolchains(cells, store=store, found=found, compile_limits=SHORT, unbounded_memory=True)


@pytest.fixture(scope="module")
def canary() -> Iterator[Path]:
    """A file that every user of the machine can read, and no cell."""
    path = Path("/var/tmp") / f"areal-canary-{os.getpid()}"
    path.write_text(f'const char *secret = "{SECRET}";\n')
    path.chmod(0o644)
    yield path
    path.unlink()


async def refused(toolchains: Toolchains, store: PreparedFiles, language: str, source: str) -> Compilation:
    need(language, toolchains, store)
    began = time.monotonic()
    compiled = await toolchains.compiled(Submission(source, language))
    assert time.monotonic() - began < 60  # a bomb that isn't stopped takes hours
    assert not compiled.ok
    assert compiled.result is not None
    assert compiled.result.status in (Status.COMPILE_ERROR, Status.TIME_LIMIT), compiled.result
    assert compiled.result.detail
    assert not compiled.files
    return compiled


BOMBS = {
    "templates without end": (
        "cpp",
        "template <int N, int M> struct Deep { static const int v = Deep<N - 1, M>::v + Deep<N - 1, M + N>::v; };\n"
        "template <int M> struct Deep<0, M> { static const int v = M; };\nint main() { return Deep<26, 0>::v; }",
    ),
    "a computation for the compiler": (
        "cpp",
        "constexpr long f(long n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
        "static_assert(f(45) != 0);\nint main() {}",
    ),
    "an endless file": ("c", '#include "/dev/zero"\nint main(void) { return 0; }'),
    "a random file": ("c", '#include "/dev/urandom"\nint main(void) { return 0; }'),
    "its own input": ("c", "#include </dev/stdin>\nint main(void) { return undefined; }"),
    "itself": ("c", "#include __FILE__\n#include __FILE__\nint main(void) { return 0; }"),
    "a huge program": ("c", "char huge[1UL << 30] = {1};\nint main(void) { return huge[5]; }"),
    "a huge program of rust": ("rust", 'static H: [u8; 1 << 30] = [1; 1 << 30]; fn main() { println!("{}", H[5]); }'),
    "macros that double": (
        "c",
        "#define A x x x x x x x x\n"
        + "".join(f"#define {b} {' '.join([a] * 8)}\n" for a, b in zip("ABCDEFGH", "BCDEFGHI", strict=True))
        + "int main(void) { I }",
    ),
    "macros of rust": (
        "rust",
        '#![recursion_limit = "4096"]\nmacro_rules! m { ($($t:tt)*) => { m!($($t)* $($t)*) } }\nfn main() { m!(x x) }',
    ),
    "a huge array of go": ("go", "package main\nvar h = [1 << 33]byte{1: 1}\nfunc main() { println(h[1]) }"),
    "many errors": ("cpp", "int main() {" + "no;" * 200_000 + "}"),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_a_bomb_is_refused_within_its_limits(quick: Toolchains, store: PreparedFiles, name: str) -> None:
    language, source = BOMBS[name]
    await refused(quick, store, language, source)


@pytest.mark.parametrize(
    ("language", "source"),
    [
        ("c", '#include "{path}"\n#include <stdio.h>\nint main(void) {{ puts(secret); }}'),
        ("c", '#include "/etc/shadow"\nint main(void) {{ return 0; }}'),
        ("c", '__asm__(".incbin \\"{path}\\""); int main(void) {{ return 0; }}'),
        ("cpp", '#include "{path}"\nint main() {{ return !secret; }}'),
        ("rust", 'fn main() {{ print!("{{}}", include_str!("{path}")); }}'),
        ("go", 'package main\nimport _ "embed"\n//go:embed {path}\nvar s string\nfunc main() {{ print(s) }}'),
    ],
)
async def test_no_file_of_the_machine_is_compiled_in(
    toolchains: Toolchains, store: PreparedFiles, canary: Path, language: str, source: str
) -> None:
    compiled = await refused(toolchains, store, language, source.format(path=canary))
    assert compiled.result is not None
    assert SECRET not in compiled.result.stderr_head + compiled.result.detail


async def test_environment_of_the_service_is_unknown_to_compilers(
    toolchains: Toolchains, store: PreparedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("rust", toolchains, store)
    monkeypatch.setenv("AREAL_CANARY", SECRET)
    compiled = await refused(toolchains, store, "rust", 'fn main() { println!("{}", env!("AREAL_CANARY")); }')
    assert compiled.result is not None
    assert SECRET not in compiled.result.stderr_head


async def test_a_compilation_that_nobody_waits_for_ends_and_leaves_nothing(
    cells: Sandbox, quick: Toolchains, store: PreparedFiles, found: tuple[Toolchain, ...]
) -> None:
    need("cpp", quick, store)
    language, source = BOMBS["a computation for the compiler"]
    patient = Toolchains(cells, found=found)
    asking = asyncio.ensure_future(patient.compiled(Submission(source, language)))
    async with asyncio.timeout(60):
        while not _compilers():  # noqa: ASYNC110  (the kernel tells nobody of new processes)
            await asyncio.sleep(0.02)
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(60):  # the caller is back at once; the kernel ends a killed group later
        while _compilers() or cells.counters().running:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert asking.cancelled()
    assert (await quick.compiled(Submission("int main() {}", language))).result is not None


def _compilers() -> list[int]:
    """Compilers that some cell of ours runs now."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("cc1plus"):
                found.append(process.pid)
    return found
