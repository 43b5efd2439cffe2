"""C++ headers that are made once: they change how long a program takes to compile, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
import pytest_asyncio
from areal.errors import InfraError
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.table import PREPARE_LIMITS
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.values import Submission
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import Ending, ImageCommand, Powers, ProgramRun, RunEnding
from judge.languages.conftest import need

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]

ALL = "#include <bits/stdc++.h>\n"
SORTS = (
    "int main() { std::vector<int> v(9); for (auto& x : v) std::cin >> x;"
    " std::sort(v.begin(), v.end()); for (int x : v) std::cout << x << std::endl; }\n"
)
PROGRAMS = {
    "all headers": ALL + SORTS,
    "all headers twice": ALL + ALL + SORTS,
    "one header": "#include <iostream>\nint main() { int a; std::cin >> a; std::cout << a; }\n",
    "some headers, one of them twice": "#include <iostream>\n#include <vector>\n#include <algorithm>\n"
    "#include <iostream>\n" + SORTS,
    "one header, then all": "#include <iostream>\n" + ALL + SORTS,
    "names that only all headers bring": "#include <iostream>\nusing namespace std;\nint gcd = 3, optional = 4;\n"
    "int main() { cout << gcd + optional; }\n",
    "other headers": "#include <cstdio>\n#include <cmath>\nint main() { std::printf(\"%.3f\", std::sqrt(2.0)); }\n",
    "headers of the compiler's extensions": ALL + "#include <ext/pb_ds/assoc_container.hpp>\n"
    "int main() { __gnu_pbds::gp_hash_table<int, int> t; t[3] = 4; std::cout << t[3]; }\n",
    "options in the source": '#pragma GCC optimize("O3,unroll-loops")\n' + ALL + SORTS,
    "another machine in the source": '#pragma GCC target("avx2")\n' + ALL + "#include <immintrin.h>\n"
    "int main() { auto a = _mm256_set1_epi32(3); std::cout << _mm256_extract_epi32(_mm256_add_epi32(a, a), 0); }\n",
    "a macro that a header reads": "#define NDEBUG\n" + ALL + "int main() { int x; std::cin >> x; assert(x == 3); }\n",
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(cells: Sandbox, found: tuple[Toolchain, ...]) -> AsyncIterator[Toolchains]:
    """Toolchains that keep nothing ready."""
    made = Toolchains(cells, found=found)
    yield made
    await made.close()


@pytest.fixture
def cpp(found: tuple[Toolchain, ...]) -> Toolchain:
    return next(toolchain for toolchain in found if toolchain.language == "cpp")


@pytest.fixture
def empty() -> Iterator[PreparedFiles]:
    store = PreparedFiles()
    yield store
    store.close()


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_is_the_same_with_and_without_headers_made_before(
    toolchains: Toolchains, bare: Toolchains, store: PreparedFiles, cpp: Toolchain, name: str
) -> None:
    need("cpp", toolchains, store)
    assert store.has(cpp), "the headers were not made"
    quick, slow = [await each.compiled(Submission(PROGRAMS[name], "cpp")) for each in (toolchains, bare)]
    assert slow.ok, slow.result
    assert quick.ok, quick.result
    assert quick.files == slow.files


@pytest.mark.parametrize("header", ["bits/stdc++.h", "iostream"])
async def test_a_header_made_before_is_the_one_that_is_read(
    cells: Sandbox, toolchains: Toolchains, store: PreparedFiles, cpp: Toolchain, header: str
) -> None:
    need("cpp", toolchains, store)
    telling = Toolchains(Telling(cells), store=store, found=[cpp])
    compiled = await telling.compiled(Submission(f"#include <{header}>\nint main() {{}}\n", "cpp"))
    await telling.close()
    assert compiled.result is not None
    assert compiled.result.stderr_head.splitlines()[0] == f"! {store.directory(cpp)}/{header}.gch"


class Telling:
    """Cells whose C++ compiler tells which headers it reads; "!" is one that was made before."""

    def __init__(self, cells: Sandbox) -> None:
        self.cells = cells

    @property
    def powers(self) -> Powers:
        return self.cells.powers

    async def run(self, run: ProgramRun) -> RunEnding:
        assert isinstance(run.entry, ImageCommand)
        return await self.cells.run(replace(run, entry=replace(run.entry, argv=(*run.entry.argv, "-H"))))


class Failing:
    """Cells that make no headers: each try ends like the next of `ends`, and the last ones succeed."""

    def __init__(self, cells: Sandbox, *ends: RunEnding | InfraError) -> None:
        self.cells = cells
        self.ends = list(ends)

    @property
    def powers(self) -> Powers:
        return self.cells.powers

    async def run(self, run: ProgramRun) -> RunEnding:
        if run.limits is not PREPARE_LIMITS or not self.ends:
            return await self.cells.run(run)
        end = self.ends.pop(0)
        if isinstance(end, InfraError):
            raise end
        return end


async def test_without_its_headers_a_compiler_compiles_and_the_log_says_so(
    cells: Sandbox,
    toolchains: Toolchains,
    store: PreparedFiles,
    empty: PreparedFiles,
    cpp: Toolchain,
    caplog: pytest.LogCaptureFixture,
) -> None:
    need("cpp", toolchains, store)
    failing = Failing(cells, RunEnding(Ending.EXITED, exit_code=1, stderr=b"no room for headers"))
    slower = Toolchains(failing, store=empty, found=[cpp])
    with caplog.at_level(logging.WARNING):
        await slower.prepare(["cpp"])
    assert "no room for headers" in caplog.text
    assert "slower" in caplog.text
    assert next(iter(slower.capabilities())).runnable
    assert (await slower.compiled(Submission(PROGRAMS["one header"], "cpp"))).ok
    await slower.close()
    assert not empty.has(cpp)


async def test_headers_that_the_sandbox_failed_to_make_are_made_with_a_later_program(
    cells: Sandbox, toolchains: Toolchains, store: PreparedFiles, empty: PreparedFiles, cpp: Toolchain
) -> None:
    need("cpp", toolchains, store)
    retrying = Toolchains(Failing(cells, InfraError("no cell")), store=empty, found=[cpp])
    with pytest.raises(InfraError):
        await retrying.prepare(["cpp"])
    assert (await retrying.compiled(Submission(PROGRAMS["one header"], "cpp"))).ok
    await retrying.prepare(["cpp"])  # waits for what the program began
    await retrying.close()
    assert empty.has(cpp)
