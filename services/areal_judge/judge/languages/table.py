"""The languages that can be judged: how each is compiled and run, and what its runtime needs for itself. Pure data.

Words in braces stand for what a machine or a run fills in:

- `{gcc}`, `{java}`, …: the programs of the toolchain, absolute paths
- `{store}`: the directory that holds what was prepared for the language
- `{heap_mb}`, `{stack_kb}`, `{heap_bytes}`: from the limits of the run
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from areal_judge.sandbox.values import Limits, Tier

PATH = "/usr/bin:/bin"
_NONE: Mapping[str, str] = MappingProxyType({})
_C_LOCALE = MappingProxyType({"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/tmp"})

COMPILE_LIMITS = Limits(
    wall_s=20.0,  # twice the CPU time: other runs share the cores
    cpu_s=10.0,
    memory_bytes=1 << 30,
    output_bytes=64 << 10,
    stderr_bytes=64 << 10,
    disk_bytes=64 << 20,
    inodes=1024,
    processes=32,
    open_files=256,
)
PREPARE_LIMITS = Limits(
    wall_s=300.0,
    cpu_s=200.0,
    memory_bytes=3 << 30,
    output_bytes=64 << 10,
    stderr_bytes=64 << 10,
    disk_bytes=1 << 30,
    inodes=20_000,
    processes=64,
    open_files=1024,
)


@dataclass(frozen=True)
class Language:
    """One language. Its limits are a suite's, times the factors, plus what its runtime takes before the first line."""

    name: str
    tier: Tier  # the least that runs it
    source: str  # what the submission's file is called
    tools: Mapping[str, tuple[str, ...]]  # a word of argv → names to look for
    install: str  # Debian packages that bring it
    module: tuple[str, str] = ("", "")  # another name for the file, where the text has this pattern
    run: tuple[str, ...] = ()  # empty: a Script of the sandbox's own interpreter
    compile: tuple[str, ...] = ()  # empty: nothing to compile
    artefact: str = ""  # what `compile` makes
    executable: bool = False  # whether the artefact is the program itself
    prepare: tuple[str, ...] = ()  # made once a toolchain, from files of ours
    prepare_files: Mapping[str, str] = field(default_factory=lambda: _NONE)  # name in the cell → file beside this one
    prepared: tuple[str, ...] = ()  # what `prepare` makes
    store: bool = False  # prepared files lie in the store; else they are laid into every compilation
    needs_prepared: bool = False  # without them there's no compiling; else they only make it faster
    compile_environment: Mapping[str, str] = field(default_factory=lambda: _C_LOCALE)
    environment: Mapping[str, str] = field(default_factory=lambda: _C_LOCALE)
    time_factor: float = 1.0
    memory_factor: float = 1.0
    start_s: float = 0.0  # wall and CPU seconds
    start_bytes: int = 0
    processes: int = 1  # at least; threads count
    open_files: int = 64  # at least
    as_memory: bool = True  # whether it can start under RLIMIT_AS
    compile_as_memory: bool = True

    @property
    def compiled(self) -> bool:
        return bool(self.compile)


_GNU_TOLD = ("-fno-diagnostics-show-caret", "-fmax-errors=5", "-o", "program")

_C = Language(
    name="c",
    tier=Tier.T3,
    source="main.c",
    tools={"gcc": ("gcc", "cc")},
    install="gcc libc6-dev",
    compile=("{gcc}", "-std=gnu17", "-O2", "-w", *_GNU_TOLD, "main.c", "-lm"),
    artefact="program",
    executable=True,
    run=("./program",),
)

# The compiler takes a file's first header ready-made and no other: these two are what most programs begin with. Beside
# each lies its source, which goes on to the compiler's own: a program may include a header twice.
_CPP_PREPARE = 'for header in bits/stdc++.h iostream; do "$@" -x c++-header "$header" -o "$header.gch" || exit 1; done'
_CPP_FLAGS = ("-std=gnu++20", "-O2", "-w")  # a header made with others isn't taken

_CPP = Language(
    name="cpp",
    tier=Tier.T3,
    source="main.cpp",
    tools={"gxx": ("g++", "c++")},
    install="g++",
    prepare=("/bin/sh", "-c", _CPP_PREPARE, "sh", "{gxx}", *_CPP_FLAGS),
    prepare_files={"bits/stdc++.h": "stdcxx.h", "iostream": "iostream.h"},
    prepared=("bits/stdc++.h", "bits/stdc++.h.gch", "iostream", "iostream.gch"),
    store=True,
    compile=("{gxx}", *_CPP_FLAGS, "-I", "{store}", *_GNU_TOLD, "main.cpp"),
    artefact="program",
    executable=True,
    run=("./program",),
)

_JAVASCRIPT = Language(
    name="javascript",
    tier=Tier.T3,
    source="main.js",
    module=(
        "main.mjs",
        r"(?m)^\s*(import\s[^(;]*\sfrom\s|import\s*['\"{*]|export\s)",
    ),  # Node 18 doesn't see it by itself
    tools={"node": ("node", "nodejs")},
    install="nodejs",
    run=(
        "{node}",
        "--max-old-space-size={heap_mb}",
        "--stack-size={stack_kb}",
        "--v8-pool-size=1",  # threads that collect garbage; a core is all that a run has
        "{source}",
    ),
    environment={**_C_LOCALE, "UV_THREADPOOL_SIZE": "2", "NODE_NO_WARNINGS": "1"},
    start_s=0.5,
    start_bytes=128 << 20,
    processes=32,
    open_files=256,
    as_memory=False,
)

_BASH = Language(
    name="bash",
    tier=Tier.T3,
    source="main.sh",
    tools={"bash": ("bash",)},
    install="bash coreutils",
    store=True,
    run=("{bash}", "--noprofile", "--norc", "main.sh"),
    environment={**_C_LOCALE, "PATH": "{path}"},
    start_s=0.2,
    start_bytes=32 << 20,
    processes=32,
)

COREUTILS = (
    "[", "awk", "b2sum", "base32", "base64", "basename", "bc", "cat", "chmod", "cksum", "comm", "cp", "csplit",
    "cut", "date", "dc", "dd", "diff", "dirname", "echo", "env", "expand", "expr", "factor", "false", "find",
    "fmt", "fold", "grep", "egrep", "fgrep", "head", "join", "ln", "ls", "md5sum", "mkdir", "mktemp", "mv", "nl",
    "numfmt", "od", "paste", "printf", "pwd", "readlink", "realpath", "rev", "rm", "rmdir", "sed", "seq",
    "sha1sum", "sha256sum", "sha512sum", "shuf", "sleep", "sort", "split", "stat", "sum", "tac", "tail", "tee",
    "test", "timeout", "touch", "tr", "true", "truncate", "tsort", "uname", "unexpand", "uniq", "wc", "xargs",
    "xxd", "yes", "bash", "sh",
)  # fmt: skip
"""What a bash program finds on its PATH, of what the machine has."""

_JVM = (
    "-XX:+UseSerialGC",  # no threads for the collector
    "-XX:TieredStopAtLevel=1",
    "-XX:ActiveProcessorCount=1",
    "-XX:-UsePerfData",  # writes to /tmp
    "-XX:-UseContainerSupport",  # the limits come from here
    "-XX:ReservedCodeCacheSize=64m",
    "-Xshare:auto",
)

_JAVA = Language(
    name="java",
    tier=Tier.T3,
    source="Main.java",
    tools={"java": ("java",), "javac": ("javac",)},
    install="default-jdk-headless",
    prepare=("{java}", *_JVM, "-Xmx256m", "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "Pack.java"),
    prepare_files={"Pack.java": "Pack.java"},
    prepared=("Pack.class", "Pack$Source.class"),
    needs_prepared=True,
    compile=("{java}", *_JVM, "-Xmx512m", "-Xss16m", "-XX:MaxMetaspaceSize=128m", "-cp", ".", "Pack", "Main.java"),
    artefact="program.jar",
    run=("{java}", *_JVM, "-Xmx{heap_mb}m", "-Xss{stack_kb}k", "-jar", "program.jar"),
    time_factor=2.0,
    start_s=1.0,
    start_bytes=256 << 20,
    processes=64,
    open_files=256,
    as_memory=False,
    compile_as_memory=False,
)

_GO_ENVIRONMENT = {
    **_C_LOCALE,
    "GOENV": "off",
    "GOFLAGS": "-trimpath",
    "GOTOOLCHAIN": "local",
    "GO111MODULE": "off",
    "CGO_ENABLED": "0",
    "GOPATH": "/box/path",
    "GOCACHE": "/box/cache",
    "GOTELEMETRY": "off",
    "GOMAXPROCS": "2",
}

GO_PACKAGES = (
    "bufio", "bytes", "cmp", "container/heap", "container/list", "container/ring", "context",
    "crypto/md5", "crypto/rand", "crypto/sha1", "crypto/sha256", "embed", "encoding/base32",
    "encoding/base64", "encoding/binary", "encoding/csv", "encoding/hex", "encoding/json", "errors", "flag",
    "fmt", "hash/adler32", "hash/crc32", "hash/crc64", "hash/fnv", "hash/maphash", "io", "io/fs", "io/ioutil",
    "iter", "log", "maps", "math", "math/big", "math/bits", "math/cmplx", "math/rand", "math/rand/v2", "net",
    "os", "os/exec", "os/signal", "path", "path/filepath", "reflect", "regexp", "runtime", "runtime/debug",
    "slices", "sort", "strconv", "strings", "sync", "sync/atomic", "syscall", "text/scanner",
    "text/tabwriter", "text/template", "time", "unicode", "unicode/utf16", "unicode/utf8", "unique", "unsafe",
)  # fmt: skip
_GO_FILES = 400  # packages with what they import: 140

# The `go` command looks over its cache for longer than it compiles: compiler and linker are called as it calls them.
_GO_COMPILE = (
    '"$0" -p main -complete -trimpath "$PWD" -importcfg "$2/importcfg" -o main.a main.go && '
    'exec "$1" -s -w -buildid= -importcfg "$2/importcfg" -o program main.a'
)
_GO_PREPARE = (
    'root=$1 store=$2; shift 2; for package; do [ -d "$root/src/$package" ] && set -- "$@" "$package"; shift; done; '
    '"$0" list -export -deps -f "{{{{if .Export}}}}{{{{.ImportPath}}}} {{{{.Export}}}}{{{{end}}}}" "$@" > list '
    "|| exit 1; "
    'n=0; while read -r package file; do n=$((n+1)); cp "$file" "$n.a"; echo "packagefile $package=$store/$n.a"; '
    "done < list > importcfg"
)

_GO = Language(
    name="go",
    tier=Tier.T3,
    source="main.go",
    tools={"go": ("go",)},
    install="golang-go",
    prepare=("/bin/sh", "-c", _GO_PREPARE, "{go}", "{goroot}", "{store}", *GO_PACKAGES),
    prepared=("importcfg", *(f"{number}.a" for number in range(1, _GO_FILES))),
    store=True,
    needs_prepared=True,
    compile=("/bin/sh", "-c", _GO_COMPILE, "{go_compile}", "{go_link}", "{store}"),
    artefact="program",
    executable=True,
    run=("./program",),
    compile_environment=_GO_ENVIRONMENT,
    environment={**_C_LOCALE, "GOMAXPROCS": "2", "GOMEMLIMIT": "{heap_bytes}", "GOTRACEBACK": "single"},
    start_s=0.2,
    start_bytes=64 << 20,
    processes=16,
    as_memory=False,
    compile_as_memory=False,
)

_RUST = Language(
    name="rust",
    tier=Tier.T3,
    source="main.rs",
    tools={"rustc": ("rustc",), "linker": ("gcc", "cc")},
    install="rustc gcc libc6-dev",
    compile=(
        "{rustc}",
        "--edition=2021",
        "--cap-lints=allow",
        "--error-format=short",
        "-O",
        "-Ccodegen-units=1",
        "-Cstrip=symbols",
        "-Clinker={linker}",
        "-oprogram",
        "main.rs",
    ),
    artefact="program",
    executable=True,
    run=("./program",),
)

_PYTHON = Language(name="python", tier=Tier.T2, source="main.py", tools={}, install="python3")

LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {language.name: language for language in (_PYTHON, _C, _CPP, _JAVASCRIPT, _BASH, _JAVA, _GO, _RUST)}
)
_OTHER_NAMES = {
    "python": "python3 py", "cpp": "c++ cc cxx", "javascript": "js node nodejs", "bash": "sh shell", "go": "golang",
    "rust": "rs",
}  # fmt: skip
ALIASES = {alias: name for name, aliases in _OTHER_NAMES.items() for alias in aliases.split()}


def language_of(name: str) -> Language | None:
    """The language that people call `name`."""
    lower = name.strip().lower()
    return LANGUAGES.get(ALIASES.get(lower, lower))
