"""Toolchains: compiles a submission once, in a cell, and tells how to run what came out.

Promises: nothing of a submission is compiled or run outside of a cell; the same source under the same toolchain is
compiled once while it is remembered, however many ask at a time; a language that this machine or its tier can't run, or
whose memory nothing would bound, is refused by name with what to do about it.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from areal.errors import ConfigError, InfraError
from areal.single_flight import SingleFlight
from cachetools import LRUCache

from areal_judge.judge.languages import discovery
from areal_judge.judge.languages.discovery import Toolchain
from areal_judge.judge.languages.preparation import (
    PreparationError,
    PreparedFiles,
    ToolchainRunner,
    coreutils,
    filled,
    filled_environment,
    prepare,
)
from areal_judge.judge.languages.table import COMPILE_LIMITS, LANGUAGES, PATH, Language, language_of
from areal_judge.judge.values import CaseResult, Status, Submission
from areal_judge.sandbox import values

_HEAD_BYTES = 2048  # of what a compiler said
_OVERHEAD_BYTES = 1024  # of a remembered artefact, beside its files
_MEGABYTE = 1 << 20
_HEAD_LINES = 12
_NOT_STARTED = 127
_NOWHERE = "/nonexistent"
_OVER = {
    values.Ending.CPU_LIMIT: "took more than its {limits.cpu_s:g} s of CPU time",
    values.Ending.MEMORY_LIMIT: "took more than its {megabytes} MB of memory",
    values.Ending.OUTPUT_LIMIT: "printed more than {limits.output_bytes} bytes",
    values.Ending.DISK_LIMIT: "wrote more than {limits.disk_bytes} bytes",
    values.Ending.PROCESS_LIMIT: "started more than {limits.processes} processes",
}
_FIX_MISSING = "install it, or ask for another language"
_FIX_TIER = "use a machine of tier T3 with a delegated cgroup, or another language"
_FIX_READABLE = "name its directories to the sandbox: SandboxConfig(readable=Toolchains.readable(…))"

_log = logging.getLogger(__name__)


class LanguageRefusedError(ConfigError):
    """No such language, none of its toolchain here, or a tier that can't run it."""


@dataclass(frozen=True)
class Compilation:
    """A submission that is ready to run, or what the compiler had against it."""

    language: str
    source: str
    ok: bool = True
    result: CaseResult | None = None  # of the compilation; None where there's nothing to compile
    files: Mapping[str, bytes] = field(default_factory=dict)  # to lay into every cell
    executable: tuple[str, ...] = ()
    cached: bool = False
    lasting: bool = True  # False: another try might end otherwise

    @property
    def size_bytes(self) -> int:
        return _OVERHEAD_BYTES + len(self.source) + sum(map(len, self.files.values()))


class Toolchains:
    """All toolchains of a machine. Its store has to be among the sandbox's readable paths: see `readable`."""

    def __init__(
        self,
        cells: ToolchainRunner,
        *,
        store: PreparedFiles | None = None,
        cache_bytes: int = 256 << 20,
        compile_limits: values.Limits = COMPILE_LIMITS,
        unbounded_memory: bool = False,
        found: Sequence[Toolchain] | None = None,
    ) -> None:
        """`unbounded_memory` allows languages whose runs, without a cgroup, may take more memory than their limit."""
        self._cells = cells
        self._store = store
        self._limits = compile_limits
        self._unbounded_memory = unbounded_memory
        self._toolchains = {toolchain.language: toolchain for toolchain in (found or discovery.find_toolchains())}
        self.cache: ArtefactCache[Compilation] = ArtefactCache(cache_bytes)
        self._preparing: dict[str, asyncio.Lock] = {}
        self._soon: dict[str, asyncio.Task[None]] = {}  # language → its preparation, which nobody waits for
        self._prepared: dict[str, Mapping[str, bytes]] = {}  # language → prepared files that go into each compilation
        self._unprepared: dict[str, str] = {}  # language → why preparing it failed

    @staticmethod
    def readable(found: Sequence[Toolchain], store: PreparedFiles | None = None) -> tuple[str, ...]:
        """What a sandbox must let its cells read, for these toolchains to run in them."""
        paths = [path for toolchain in found if toolchain.present for path in toolchain.readable]
        return tuple(dict.fromkeys([*paths, *([str(store.path)] if store else [])]))

    @property
    def tier(self) -> values.Tier:
        """What the sandbox reaches."""
        return self._cells.powers.tier

    async def prepare(self, languages: Sequence[str] | None = None) -> None:
        """Makes what compilations share, of the languages that run here, ahead of the first that needs it.

        Otherwise the first submission of a language sees to it: Go's waits, C++'s is compiled without meanwhile.
        """
        for toolchain in self.capabilities():
            language = LANGUAGES[toolchain.language]
            if toolchain.runnable and (languages is None or language.name in languages):
                await self._prepare(language, toolchain)

    def capabilities(self) -> tuple[Toolchain, ...]:
        """Every language: whether it runs here, and if not, why."""
        known = self._toolchains.values()
        return tuple(replace(toolchain, refused=self._refusal(LANGUAGES[toolchain.language])) for toolchain in known)

    async def compiled(self, submission: Submission) -> Compilation:
        """A submission ready to run, or refused by its compiler (`ok` is False, `result` says how).

        Raises LanguageRefusedError, and InfraError when the sandbox failed.
        """
        language = self._allowed(submission.language)
        toolchain = self._toolchains[language.name]
        source = submission.source.replace("\r\n", "\n")
        if not language.compiled:
            await self._prepare(language, toolchain)
            name, pattern = language.module
            file = name if name and re.search(pattern, source) else language.source
            files = {file: _encoded(source)} if language.run else {}
            return Compilation(language.name, source, files=files)
        if language.needs_prepared:
            await self._prepare(language, toolchain)
        elif language.prepare:
            self._prepare_soon(language, toolchain)
        key = _digest(toolchain, language, source)
        made, cached = await self.cache.get(key, lambda: self._compile(language, toolchain, source))
        return replace(made, cached=cached)

    def run_of(self, compiled: Compilation, stdin: bytes, limits: values.Limits) -> values.ProgramRun:
        """One run of a compiled submission. `limits` are the suite's; the language's factors and shares are added."""
        language = LANGUAGES[compiled.language]
        adjusted = run_limits(language, limits, sum(map(len, compiled.files.values())))
        if not language.run:
            return values.ProgramRun(values.PythonScript(compiled.source), stdin=stdin, limits=adjusted)
        words = self._words(self._toolchains[language.name]) | {
            "source": next(iter(compiled.files)),
            "heap_mb": str(max(16, int(limits.memory_bytes * language.memory_factor) // _MEGABYTE)),
            "heap_bytes": str(int(limits.memory_bytes * language.memory_factor)),
            "stack_kb": str(max(512, limits.stack_bytes * 3 // 4 // 1024)),  # the rest is the runtime's own frames
        }
        return values.ProgramRun(
            values.ImageCommand(filled(language.run, words), filled_environment(language.environment, words)),
            stdin=stdin,
            files=compiled.files,
            executable=compiled.executable,
            limits=adjusted,
            as_memory=language.as_memory,
        )

    async def close(self) -> None:
        """Ends what is under way and forgets all."""
        await self.cache.close()
        tasks = list(self._soon.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _allowed(self, name: str) -> Language:
        language = language_of(name)
        if language is None:
            raise LanguageRefusedError(f"no language {name!r}", fix=f"use one of {', '.join(LANGUAGES)}")
        toolchain = self._toolchains.get(language.name)
        missing = toolchain.missing if toolchain else "its toolchain wasn't looked for"
        if reason := missing or self._refusal(language):
            fix = _FIX_MISSING if missing else _FIX_TIER
            raise LanguageRefusedError(f"{language.name} can't run here: {reason}", fix=fix)
        return language

    def _refusal(self, language: Language) -> str:
        powers = self._cells.powers
        if not language.run:
            return "" if powers.tier >= language.tier or powers.execute else "no tier is reached, and T0 isn't allowed"
        if not (powers.execute and powers.scratch):
            return f"it starts programs, which needs tier T3; this machine has {powers.tier.name}"
        if language.processes > 1 and not powers.fork:
            return "it needs several threads or processes, which this machine's tier forbids"
        if powers.memory_bound is values.MemoryBound.PROCESS and not self._unbounded_memory:
            if not language.as_memory:
                return "its runtime can't start under RLIMIT_AS, and without a cgroup nothing else bounds its memory"
            if language.processes > 1:
                return "its programs start others, and without a cgroup each would have the whole memory limit"
        if language.needs_prepared and language.store and self._store is None:
            return "its library has to be compiled once, and there's no store to keep it in"
        return self._unprepared.get(language.name, "")

    async def _prepare(self, language: Language, toolchain: Toolchain) -> None:
        """Sees to it that a language's prepared files are there, once however many wait for them."""
        if language.name in self._prepared or (language.store and self._store is None):
            return
        async with self._preparing.setdefault(language.name, asyncio.Lock()):
            if language.name in self._prepared:
                return
            made: Mapping[str, bytes] = {}
            if not (language.store and self._store and self._store.has(toolchain)):
                try:
                    made = await prepare(self._cells, toolchain, self._words(toolchain)) if language.prepare else {}
                    if language.store and self._store:
                        links = coreutils() if language.name == "bash" else {}
                        await asyncio.to_thread(self._store.put, toolchain, made, links)
                except PreparationError as error:
                    if language.needs_prepared:
                        self._unprepared[language.name] = error.message
                        raise
                    _log.warning("%s: compilations will be slower", error.message)
            self._prepared[language.name] = {} if language.store else made

    def _prepare_soon(self, language: Language, toolchain: Toolchain) -> None:
        """The same, waited for by nobody: what the sandbox failed to do is tried again with the next submission."""
        if language.name in self._prepared or language.name in self._soon or self._store is None:
            return

        def done(task: asyncio.Task[None]) -> None:
            del self._soon[language.name]
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.warning("%s is compiled without what would make that faster: %s", language.name, error)

        self._soon[language.name] = task = asyncio.ensure_future(self._prepare(language, toolchain))
        task.add_done_callback(done)

    async def _compile(self, language: Language, toolchain: Toolchain, source: str) -> Compilation:
        words = self._words(toolchain)
        run = values.ProgramRun(
            values.ImageCommand(
                filled(language.compile, words), filled_environment(language.compile_environment, words)
            ),
            files={**self._prepared.get(language.name, {}), language.source: _encoded(source)},
            keep=(language.artefact,),
            limits=self._limits,
            as_memory=language.compile_as_memory,
        )
        ended = await self._cells.run(run)
        result = compile_result(ended, language, self._limits)
        files = {language.artefact: ended.files[language.artefact]} if result.status is Status.PASSED else {}
        return Compilation(
            language=language.name,
            source="",
            ok=result.status is Status.PASSED,
            result=result,
            files=files,
            executable=(language.artefact,) if language.executable else (),
            lasting=result.status is not Status.TIME_LIMIT,
        )

    def _words(self, toolchain: Toolchain) -> dict[str, str]:
        ready = self._store is not None and self._store.has(toolchain)
        place = str(self._store.directory(toolchain)) if self._store else _NOWHERE
        return {**toolchain.programs, "store": place, "path": place if ready else PATH}


def run_limits(language: Language, limits: values.Limits, laid_bytes: int) -> values.Limits:
    """A suite's limits, made those of a language: what its runtime takes for itself comes on top. Pure."""
    return replace(
        limits,
        wall_s=limits.wall_s * language.time_factor + language.start_s,
        cpu_s=limits.cpu_s * language.time_factor + language.start_s,
        memory_bytes=int(limits.memory_bytes * language.memory_factor) + language.start_bytes + laid_bytes,
        disk_bytes=limits.disk_bytes + laid_bytes,
        processes=max(limits.processes, language.processes),
        open_files=max(limits.open_files, language.open_files),
    )


def compile_result(ended: values.RunEnding, language: Language, limits: values.Limits) -> CaseResult:
    """What a compilation came to. Raises InfraError when it says nothing about the source. Pure.

    A compiler that ran out of a limit has refused its source like one that found an error in it; except for wall time,
    which a busy machine may be to blame for: that is TIME_LIMIT, and never remembered.
    """
    said = (ended.stdout + ended.stderr)[:_HEAD_BYTES].decode(errors="replace").strip()
    status = Status.COMPILE_ERROR
    detail = "\n".join(said.splitlines()[:_HEAD_LINES])
    if ended.ending is values.Ending.CANCELLED:
        raise InfraError("the compilation was cancelled")
    if ended.ending is values.Ending.EXITED and ended.exit_code == _NOT_STARTED and not ended.stdout:
        raise InfraError(f"the {language.name} compiler can't be started in a cell: {detail}", fix=_FIX_READABLE)
    if ended.ending is values.Ending.WALL_LIMIT:
        status, detail = Status.TIME_LIMIT, f"the compiler didn't end within {limits.wall_s:g} s"
    elif ended.ending in _OVER:
        detail = f"the compiler {_OVER[ended.ending].format(limits=limits, megabytes=limits.memory_bytes >> 20)}"
    elif ended.clean:
        made = language.artefact in ended.files
        status, detail = (Status.PASSED, "") if made else (Status.COMPILE_ERROR, "the compiler made no program")
    elif not detail:
        detail = f"the compiler ended with {ended.ending.value} {ended.exit_code or ended.signal}"
    return CaseResult(
        index=0,
        status=status,
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
        max_rss_bytes=ended.max_rss_bytes,
        exit_code=ended.exit_code,
        signal=ended.signal,
        stderr_head=said,
        detail=detail,
    )


def _encoded(source: str) -> bytes:
    return source.encode("utf-8", "surrogatepass")


def _digest(toolchain: Toolchain, language: Language, source: str) -> str:
    """What a compilation is remembered by."""
    parts = (toolchain.digest, language.compile, sorted(language.compile_environment.items()), source)
    return hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()


# ---- LRU cache of compiled programs, bounded by bytes, single flight per key
# Owns the tasks that compile. A caller that asks while one is under way shares it; the last caller to leave cancels it.


class Artefact(Protocol):
    """What can be remembered."""

    @property
    def size_bytes(self) -> int: ...

    @property
    def lasting(self) -> bool:
        """Whether making it again would give the same."""
        ...


T = TypeVar("T", bound=Artefact)


class ArtefactCache(Generic[T]):
    """Makes each artefact once while it is remembered.

    Who asks while it is being made waits for that: the cases of one program come all at once.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._kept: LRUCache[str, T] = LRUCache(capacity_bytes, getsizeof=lambda made: made.size_bytes)
        self._making: SingleFlight[T] = SingleFlight()
        self.misses = 0

    @property
    def size_bytes(self) -> int:
        """Of all that is remembered."""
        return int(self._kept.currsize)

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """The artefact, and whether it was made or being made already. Keeps nothing when `make` raises."""
        if (kept := self._kept.get(key)) is not None:
            return kept, True
        shared = key in self._making
        self.misses += not shared
        return await self._making.share(key, lambda: self._made(key, make)), shared

    async def close(self) -> None:
        """Ends what is under way."""
        await self._making.close()
        self._kept.clear()

    async def _made(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        made = await make()
        if made.lasting and made.size_bytes <= self._kept.maxsize:
            self._kept[key] = made
        return made
