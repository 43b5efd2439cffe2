"""What a machine and its tier may run, what a language's limits become, what a compilation came to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from areal.errors import ConfigError, InfraError
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.preparation import PreparationError, PreparedFiles
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES, language_of
from areal_judge.judge.languages.toolchains import LanguageRefusedError, Toolchains, compile_result, run_limits
from areal_judge.judge.values import Judgement, Status, Submission
from areal_judge.sandbox.values import (
    DEFAULT_LIMITS,
    Ending,
    ImageCommand,
    MemoryBound,
    Powers,
    ProgramRun,
    PythonScript,
    RunEnding,
    Tier,
)
from areal_judge.server.wire import judgement_to_wire

T3 = Powers(Tier.T3, MemoryBound.CGROUP, fork=True, execute=True, scratch=True)
T3_PROCESS = replace(T3, memory_bound=MemoryBound.PROCESS)
T2 = Powers(Tier.T2, MemoryBound.PROCESS, fork=False, execute=False, scratch=False)
WORDS = {
    "gcc": "/gcc",
    "gxx": "/g++",
    "node": "/node",
    "bash": "/bash",
    "java": "/java",
    "go": "/go",
    "rustc": "/rustc",
}
WORDS |= {"go_compile": "/compile", "go_link": "/link", "goroot": "/goroot", "linker": "/gcc"}
ALL = tuple(Toolchain(name, "1", "d", WORDS) for name in LANGUAGES)


class Idle:
    """A sandbox that runs nothing."""

    def __init__(self, powers: Powers, ended: RunEnding | None = None) -> None:
        self.powers, self.ended = powers, ended
        self.runs: list[ProgramRun] = []

    async def run(self, run: ProgramRun) -> RunEnding:
        self.runs.append(run)
        assert self.ended is not None, "nothing was to be run"
        return self.ended


@pytest.fixture
def kept(tmp_path: Path) -> PreparedFiles:
    return PreparedFiles(tmp_path / "store")


def runnable(powers: Powers, store: PreparedFiles | None = None, **options: bool) -> set[str]:
    toolchains = Toolchains(Idle(powers), found=ALL, store=store, **options)
    return {one.language for one in toolchains.capabilities() if one.runnable}


def test_a_full_machine_runs_every_language(kept: PreparedFiles) -> None:
    assert runnable(T3, kept) == set(LANGUAGES)


def test_go_waits_for_a_place_to_keep_its_library() -> None:
    assert set(LANGUAGES) - runnable(T3) == {"go"}


def test_a_restricted_pod_runs_python_only() -> None:
    assert runnable(T2) == {"python"}


def test_without_a_cgroup_only_what_one_process_bounds_is_run() -> None:
    assert runnable(T3_PROCESS) == {"python", "c", "cpp", "rust"}


def test_a_person_may_allow_memory_that_nothing_bounds(kept: PreparedFiles) -> None:
    assert runnable(T3_PROCESS, kept, unbounded_memory=True) == set(LANGUAGES)


@pytest.mark.parametrize(
    ("language", "powers", "words"),
    [
        ("cobol", T3, "use one of python"),
        ("c", T2, "tier T3"),
        ("java", T3_PROCESS, "RLIMIT_AS"),
        ("bash", T3_PROCESS, "the whole memory limit"),
    ],
)
async def test_a_refusal_says_why_and_what_to_do(language: str, powers: Powers, words: str) -> None:
    toolchains = Toolchains(Idle(powers), found=ALL)
    with pytest.raises(LanguageRefusedError) as refusal:
        await toolchains.compiled(Submission("", language))
    assert words in str(refusal.value)
    assert refusal.value.fix


async def test_an_absent_toolchain_is_refused_with_what_to_install() -> None:
    absent = [replace(one, missing="no g++ here; install it (Debian: apt-get install g++)") for one in ALL]
    toolchains = Toolchains(Idle(T3), found=absent)
    with pytest.raises(LanguageRefusedError, match="apt-get install g\\+\\+"):
        await toolchains.compiled(Submission("", "cpp"))


async def test_python_is_a_script_with_the_suites_own_limits() -> None:
    toolchains = Toolchains(Idle(T2), found=ALL)
    compiled = await toolchains.compiled(Submission("print(1)", "python"))
    run = toolchains.run_of(compiled, b"in", DEFAULT_LIMITS)
    assert run == ProgramRun(PythonScript("print(1)"), stdin=b"in", limits=DEFAULT_LIMITS)


def test_without_a_tier_nothing_runs_unless_that_is_allowed() -> None:
    none = replace(T2, tier=Tier.T0)
    assert runnable(none) == set()
    assert "python" in runnable(replace(none, fork=True, execute=True, scratch=True))


async def test_a_scripted_language_gets_its_source_and_what_its_runtime_takes() -> None:
    toolchains = Toolchains(Idle(T3), found=ALL)
    run = toolchains.run_of(await toolchains.compiled(Submission("1;", "js")), b"", DEFAULT_LIMITS)
    assert run.files == {"main.js": b"1;"}
    assert isinstance(run.entry, ImageCommand)
    assert "--max-old-space-size=512" in run.entry.argv
    assert run.limits.memory_bytes > DEFAULT_LIMITS.memory_bytes
    assert run.limits.processes == 32
    assert not run.as_memory


@pytest.mark.parametrize("language", LANGUAGES)
async def test_every_word_of_the_table_is_known(language: str, kept: PreparedFiles) -> None:
    made = RunEnding(Ending.EXITED, exit_code=0, files=dict.fromkeys(("program", "program.jar", "importcfg"), b""))
    cells = Idle(T3, made)
    toolchains = Toolchains(cells, found=ALL, store=kept)
    await toolchains.prepare([language])
    compiled = await toolchains.compiled(Submission("", language))
    run = toolchains.run_of(compiled, b"", DEFAULT_LIMITS)
    for one in (*cells.runs, run):
        if isinstance(one.entry, ImageCommand):
            assert one.entry.argv[0].startswith(("/", "./"))


def test_limits_of_a_language_are_the_suites_and_its_own() -> None:
    java = run_limits(LANGUAGES["java"], replace(DEFAULT_LIMITS, processes=100), laid_bytes=1000)
    assert java.wall_s == 2 * DEFAULT_LIMITS.wall_s + 1.0
    assert java.processes == 100
    assert java.disk_bytes == DEFAULT_LIMITS.disk_bytes + 1000
    assert run_limits(LANGUAGES["c"], DEFAULT_LIMITS, 0) == DEFAULT_LIMITS


@pytest.mark.parametrize(
    ("ending", "status", "words"),
    [
        (Ending.CPU_LIMIT, Status.COMPILE_ERROR, "10 s of CPU"),
        (Ending.MEMORY_LIMIT, Status.COMPILE_ERROR, "1024 MB"),
        (Ending.DISK_LIMIT, Status.COMPILE_ERROR, "bytes"),
        (Ending.WALL_LIMIT, Status.TIME_LIMIT, "20 s"),
    ],
)
def test_a_limit_of_the_compiler_is_named(ending: Ending, status: Status, words: str) -> None:
    result = compile_result(RunEnding(ending), LANGUAGES["cpp"], COMPILE_LIMITS)
    assert result.status is status
    assert words in result.detail


def test_a_compiler_that_makes_nothing_has_not_compiled() -> None:
    result = compile_result(RunEnding(Ending.EXITED, exit_code=0), LANGUAGES["c"], COMPILE_LIMITS)
    assert (result.status, result.detail) == (Status.COMPILE_ERROR, "the compiler made no program")


@pytest.mark.parametrize("made", [True, False])
def test_a_compilation_crosses_the_wire_whether_it_was_refused_or_not(made: bool) -> None:
    language = LANGUAGES["cpp"]
    ended = RunEnding(Ending.EXITED, exit_code=0, files={language.artefact: b"elf"} if made else {})
    result = compile_result(ended, language, COMPILE_LIMITS)
    judgement = Judgement(Status.PASSED if made else Status.COMPILE_ERROR, compile=result)
    assert judgement_to_wire(judgement, "r", "").HasField("compile")


def test_only_the_first_lines_of_a_compiler_are_told() -> None:
    said = b"".join(b"main.c:%d: error\n" % line for line in range(1000))
    result = compile_result(RunEnding(Ending.EXITED, exit_code=1, stderr=said), LANGUAGES["c"], COMPILE_LIMITS)
    assert result.detail.splitlines()[0] == "main.c:0: error"
    assert len(result.detail.splitlines()) <= 12
    assert len(result.stderr_head) <= 2048


@pytest.mark.parametrize(
    "ended", [RunEnding(Ending.CANCELLED), RunEnding(Ending.EXITED, exit_code=127, stderr=b"/gcc: No such file")]
)
def test_what_says_nothing_of_the_source_is_no_compile_error(ended: RunEnding) -> None:
    with pytest.raises(InfraError):
        compile_result(ended, LANGUAGES["c"], COMPILE_LIMITS)


async def test_a_compilation_that_ran_out_of_wall_time_is_tried_again() -> None:
    cells = Idle(T3, RunEnding(Ending.WALL_LIMIT))
    toolchains = Toolchains(cells, found=ALL)
    for _ in range(2):
        assert not (await toolchains.compiled(Submission("", "c"))).ok
    assert len(cells.runs) == 2


async def test_a_compile_error_is_remembered_whatever_ends_its_lines() -> None:
    cells = Idle(T3, RunEnding(Ending.EXITED, exit_code=1, stderr=b"no"))
    toolchains = Toolchains(cells, found=ALL)
    for source in ("a\nb", "a\r\nb", "a\nb"):
        assert not (await toolchains.compiled(Submission(source, "c"))).ok
    await toolchains.compiled(Submission("a\nb", "cpp"))
    assert len(cells.runs) == 2


@pytest.mark.parametrize("language", LANGUAGES)
async def test_what_is_remembered_is_what_ran_whatever_ends_its_lines(language: str, kept: PreparedFiles) -> None:
    made = RunEnding(Ending.EXITED, exit_code=0, files=dict.fromkeys(("program", "program.jar", "importcfg"), b""))
    cells = Idle(T3, made)
    toolchains = Toolchains(cells, found=ALL, store=kept)
    await toolchains.prepare([language])
    prepared, given = len(cells.runs), []
    for source in ("a\rb", "a\r\nb", "a\nb", "a\rb"):
        compiled = await toolchains.compiled(Submission(source, language))
        if not LANGUAGES[language].compiled:
            given.append(source_in(toolchains.run_of(compiled, b"", DEFAULT_LIMITS)))
    if LANGUAGES[language].compiled:
        given = [source_in(run) for run in cells.runs[prepared:]]
        assert given == [b"a\rb", b"a\nb"]
    else:
        assert given == [b"a\rb", b"a\nb", b"a\nb", b"a\rb"]


def source_in(run: ProgramRun) -> bytes:
    if isinstance(run.entry, PythonScript):
        return run.entry.source.encode()
    return next(data for data in run.files.values() if data.startswith(b"a"))


def test_people_name_languages_as_they_like() -> None:
    assert language_of("C++") is LANGUAGES["cpp"]
    assert language_of("Python3") is LANGUAGES["python"]
    assert language_of("cobol") is None


def test_a_store_that_cells_could_not_see_is_refused() -> None:
    with pytest.raises(ConfigError, match="a cell has its own"):
        PreparedFiles("/dev/shm/areal-toolchains-of-a-test")


def test_a_temporary_store_is_gone_when_closed() -> None:
    store = PreparedFiles()
    store.put(ALL[2], {"bits/stdc++.h.gch": b"header"})
    assert store.has(ALL[2])
    assert (store.directory(ALL[2]) / "bits").stat().st_mode & 0o777 == 0o755
    store.close()
    assert not store.path.exists()


def test_two_services_may_prepare_the_same(kept: PreparedFiles) -> None:
    for _ in range(2):
        kept.put(ALL[2], {"bits/stdc++.h.gch": b"header"})
    assert [path.name for path in kept.path.iterdir()] == [kept.directory(ALL[2]).name]


def test_a_store_without_room_says_what_it_needs(kept: PreparedFiles) -> None:
    kept.path.rmdir()
    kept.path.touch()  # nobody can write below a file, whatever the user
    with pytest.raises(PreparationError, match="can't be kept") as failure:
        kept.put(ALL[2], {"iostream.gch": bytes(3 << 20)})
    assert "4 MB" in failure.value.fix
