"""Every language: what it prints, how it ends, what bounds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.preparation import PreparedFiles
from areal_judge.judge.languages.table import LANGUAGES
from areal_judge.judge.languages.toolchains import Toolchains
from areal_judge.judge.values import Status, Submission
from areal_judge.sandbox.host.runner import Sandbox
from areal_judge.sandbox.values import DEFAULT_LIMITS, Ending, MemoryBound
from judge.languages.conftest import Start, need
from judge.languages.programs import BROKEN, FAILS, PROGRAMS

pytestmark = [pytest.mark.component, pytest.mark.asyncio(loop_scope="module")]
LANDING = ("python", "cpp", "bash")  # interpreted, compiled, a shell; the others each night, and with the package alone
every_language = pytest.mark.parametrize(
    "language", [pytest.param(name, marks=() if name in LANDING else pytest.mark.nightly) for name in LANGUAGES]
)
PATIENT = replace(DEFAULT_LIMITS, wall_s=20.0, cpu_s=5.0)
SHORT = replace(DEFAULT_LIMITS, wall_s=20.0, cpu_s=0.5)
SMALL = replace(PATIENT, memory_bytes=96 << 20)


@every_language
async def test_a_program_reads_its_input_and_prints(start: Start, language: str) -> None:
    ended = await start(language, PROGRAMS[language], b"sum 1 2 3 -10 1000000\n", PATIENT)
    assert ended.clean, ended
    assert ended.stdout == b"999996\n"


@every_language
async def test_input_larger_than_a_pipe_is_read_whole(start: Start, language: str) -> None:
    numbers = b" 7" * 40_000
    ended = await start(language, PROGRAMS[language], b"sum" + numbers + b"\n", PATIENT)
    assert (ended.clean, ended.stdout) == (True, b"280000\n"), ended


@every_language
async def test_an_exit_code_is_the_programs(start: Start, language: str) -> None:
    ended = await start(language, PROGRAMS[language], b"exit\n", PATIENT)
    assert (ended.ending, ended.exit_code) == (Ending.EXITED, 7), ended


@every_language
async def test_a_program_that_fails_says_how(start: Start, language: str) -> None:
    ended = await start(language, PROGRAMS[language], b"fail\n", PATIENT)
    assert (ended.exit_code, ended.signal) == FAILS[language], ended


@every_language
async def test_a_loop_ends_at_its_cpu_limit(start: Start, language: str) -> None:
    ended = await start(language, PROGRAMS[language], b"loop\n", SHORT)
    assert ended.ending is Ending.CPU_LIMIT, ended


@every_language
async def test_a_hog_ends_at_its_memory_limit(start: Start, cells: Sandbox, language: str) -> None:
    by_process = cells.powers.memory_bound is MemoryBound.PROCESS
    if by_process and not LANGUAGES[language].as_memory:
        pytest.skip(f"nothing bounds the memory of {language} without a cgroup, and a service refuses it")
    ended = await start(language, PROGRAMS[language], b"hog\n", SMALL)
    # By process, an allocation fails: a program of C that doesn't look then uses what it hasn't got, bash gives up.
    assert ended.ending is Ending.MEMORY_LIMIT or (by_process and (ended.signal == 11 or ended.exit_code)), ended
    most = SMALL.memory_bytes + LANGUAGES[language].start_bytes + (8 << 20)
    assert ended.memory_peak_bytes is None or ended.memory_peak_bytes <= most


@pytest.mark.parametrize("language", [name for name in LANGUAGES if name not in ("python", "bash")])
async def test_recursion_goes_as_deep_as_the_stack_limit_says(start: Start, language: str) -> None:
    ended = await start(language, PROGRAMS[language], b"deep\n", PATIENT)
    assert (ended.clean, ended.stdout) == (True, b"100000\n"), ended


@pytest.mark.parametrize("language", BROKEN)
async def test_what_a_compiler_refuses_is_a_compile_error_with_its_words(
    toolchains: Toolchains, store: PreparedFiles, language: str
) -> None:
    need(language, toolchains, store)
    source, word = BROKEN[language]
    compiled = await toolchains.compiled(Submission(source, language))
    assert not compiled.ok
    assert compiled.result is not None
    assert compiled.result.status is Status.COMPILE_ERROR
    assert word in compiled.result.detail


async def test_ten_cases_compile_once(cells: Sandbox, toolchains: Toolchains, store: PreparedFiles) -> None:
    need("c", toolchains, store)
    before = toolchains.cache.misses
    source = PROGRAMS["c"] + "// ten cases\n"
    seen = []
    for number in range(10):
        compiled = await toolchains.compiled(Submission(source, "c"))
        seen.append(compiled.cached)
        ended = await cells.run(toolchains.run_of(compiled, b"sum 1 %d" % number, PATIENT))
        assert ended.stdout == b"%d\n" % (1 + number)
    assert seen == [False] + [True] * 9
    assert toolchains.cache.misses == before + 1


async def test_a_java_class_may_have_any_name_and_package(start: Start) -> None:
    main = "public static void main(String[] a) { System.out.println(Named.class.getName()); }"
    source = f"package far.away; public class Named {{ {main} }}"
    assert (await start("java", source, limits=PATIENT)).stdout == b"far.away.Named\n"


async def test_javascript_modules_run_too(start: Start) -> None:
    source = 'import { readFileSync } from "node:fs"; console.log(readFileSync(0, "utf8").length);'
    assert (await start("javascript", source, b"12345", PATIENT)).stdout == b"5\n"


async def test_bash_finds_the_core_programs_and_no_interpreters(start: Start) -> None:
    source = "sort -n | tail -1 | tr 1 x; command -v python3 gcc perl node; echo $?"
    assert (await start("bash", source, b"3\n11\n2\n", PATIENT)).stdout == b"xx\n1\n"


async def test_a_program_of_threads_runs(start: Start) -> None:
    source = "#include <bits/stdc++.h>\nint main() { int n = 0; std::thread([&] { n = 5; }).join(); std::cout << n; }"
    assert (await start("cpp", source, limits=PATIENT)).stdout == b"5"


async def test_the_first_program_of_cplusplus_does_not_wait_for_what_makes_others_faster(
    cells: Sandbox, found: tuple[Toolchain, ...]
) -> None:
    empty = PreparedFiles()
    toolchains = Toolchains(cells, store=empty, found=found)
    need("cpp", toolchains, empty)
    cpp = next(one for one in found if one.language == "cpp")
    assert (await toolchains.compiled(Submission("#include <bits/stdc++.h>\nint main() {}", "cpp"))).ok
    await toolchains.close()  # ends the preparation where it hasn't ended by itself
    assert not empty.has(cpp) or (empty.directory(cpp) / "bits" / "stdc++.h.gch").exists()
    assert cells.counters().running == 0
    empty.close()
