"""Clients at their newest versions, as their users install them today: the table of what each does with a policy.

Written to `.cache/clients.md`. Programs are installed by npm, packages by uv, each alone, so that none holds another
back. The policy is scripted: it calls the tools that it is offered.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from areal.engine.embedded import EngineOptions, TorchEngine
from areal.engine.serve import ModelServer
from areal.gateway.session import SessionLimits
from areal.values.generation import GenerationResult, Ids, OnTokens, Sampling, TokenSpan, as_ids
from areal.workflow.branches import branches_of
from areal.workflow.tokenizer import Tokenizer
from support.agent_scene import last_said
from support.chat_tokenizer import HERMES, write_chat_tokenizer
from support.engine_models import hf_logprobs, make_model
from support.gateway_scene import Engine, Scene, scene_of
from support.real_clients import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.component, pytest.mark.timeout(1200)]

TABLE = ROOT / ".cache" / "clients.md"
PROGRAMS = ROOT / ".cache" / "newest-programs"
PACKAGES = {
    "openai": "openai",
    "anthropic": "anthropic pydantic",
    "openai-agents": "openai-agents",
    "langchain": "langchain langchain-openai langchain-anthropic",
    "langgraph": "langgraph langchain-openai",
    "pydantic-ai": "pydantic-ai-slim[openai,anthropic]",
    "instructor": "instructor",
    "smolagents": "smolagents[openai]",
    "litellm": "litellm",
    "mini-swe-agent": "mini-swe-agent",
}
FRAMEWORKS = {
    "autogen": "autogen-agentchat autogen-ext[openai]",
    "dspy": "dspy",
    "agno": "agno openai",
    "google-adk": "google-adk litellm",
    "llama-index": "llama-index-core llama-index-llms-openai-like",
    "strands": "strands-agents[openai]",
    "haystack": "haystack-ai",
    "crewai": "crewai",
    "semantic-kernel": "semantic-kernel",
}
NPM = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex", "opencode": "opencode-ai"}
MODULES = {  # of Node.js: what each is installed with
    "openai": "openai zod",
    "anthropic": "@anthropic-ai/sdk",
    "ai": "ai @ai-sdk/openai @ai-sdk/anthropic @ai-sdk/openai-compatible zod",
    "langchain": "langchain @langchain/core @langchain/openai zod",
    "agents": "@openai/agents openai zod",
}
LIMITS = SessionLimits(512, 1 << 24, 256)
SHELLS = {"Bash": "command", "bash": "command", "shell": "command", "shell_command": "command", "exec_command": "cmd"}
EXPECTED: dict[str, Any] = {
    "plain": "heard one",
    "stream": "heard one",
    "tools": ("sums: 5", "5", 'sums: {"result": 5}'),  # Google's wraps what a function returns
    "shaped": 5,
    "shell": "Submitted",
}
EXPECTED["loglikelihood"] = "the model's"


def speak(prompt: str) -> str:
    """What the policy answers: a call of a tool that it is offered, an object, or what it heard."""
    said, tools = last_said(prompt), _tools(prompt)
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", said, re.DOTALL) or re.findall(
        r"Observation:\n(.*)", said
    )
    if results and "final_answer" in tools:
        return _call("final_answer", {"answer": results[0]})
    shell = next((name for name in SHELLS if name in tools), None)
    if results and shell == "bash" and "COMPLETE_TASK" not in prompt and "opencode" not in prompt:
        return _call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"})
    if results:
        return f"sums: {results[-1]}"
    if "use the shell" in said and shell is not None:
        command: Any = ["echo", "forty", "one"] if shell == "shell" else "echo forty one"
        more = {"description": "says it"} if shell in ("Bash", "bash") else {}
        return _call(shell, {SHELLS[shell]: command, **more})
    if "json of" in said:
        shaped = next((name for name in tools if name not in ("add", *SHELLS)), None)
        return _call(shaped, {"sum": 5}) if shaped else '{"sum": 5}'
    adds = next((name for name in tools if name == "add" or name.endswith("-add")), None)  # with its plugin's name
    if "2 and 3" in said and adds:
        return _call(adds, {"a": 2, "b": 3})
    return f"heard {said.strip()[-40:]}"


def _tools(prompt: str) -> list[str]:
    listed = prompt.partition("<tools>")[2].partition("</tools>")[0].strip()
    return [json.loads(line)["function"]["name"] for line in listed.splitlines()]


def _call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class SpeakingEngine(Engine):
    """Answers as `speak` says."""

    async def generate(
        self, turn: int, ids: Ids, sampling: Sampling, draw: int, on_tokens: OnTokens
    ) -> GenerationResult:
        text = speak(self.tokenizer.decode(ids, skip_special=False))
        end = next(iter(self.tokenizer.eos_ids))
        made = as_ids([*self.tokenizer.encode(text, special=False).tolist(), end])
        logprobs = np.full(len(made), -0.25, "<f4")
        for at in range(0, len(made), 5):
            on_tokens(made[at : at + 5], logprobs[at : at + 5])
            await asyncio.sleep(0)
        return GenerationResult(made, logprobs, (TokenSpan(0, len(made), "3.f1", "server"),))


@dataclass
class Row:
    """What became of a client."""

    version: str
    told: dict[str, Any]
    calls: int = 0
    sequences: int = 0
    ignored: set[str] = field(default_factory=set)

    def wrong(self) -> dict[str, Any]:
        """The scenes that came to something else."""
        return {name: said for name, said in self.told.items() if said not in _listed(EXPECTED[name])}

    def line(self, client: str) -> str:
        cells = [
            "ok" if name in self.told and name not in self.wrong() else self.told.get(name, "") for name in EXPECTED
        ]
        ignored = ", ".join(sorted(self.ignored))
        facts = [self.version, *cells, self.calls, self.sequences, ignored]
        return f"| {client} | {' | '.join(map(str, facts))} |"


def _listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


ROWS: dict[str, Row] = {}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Writes the rows when all clients are through."""
    yield
    head = f"| client | version | {' | '.join(EXPECTED)} | calls | sequences | ignored |"
    lines = [head, "|" + "---|" * (len(EXPECTED) + 5), *(row.line(name) for name, row in ROWS.items())]
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("hermes"), HERMES))


@pytest.fixture
async def scene(hermes: Tokenizer) -> AsyncIterator[Scene]:
    async with scene_of(hermes, "gateway", LIMITS, ignores=True) as made:
        yield made


NUMBERS = count()


class Played:
    """A session of its own for one client, and what became of it."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.name = scene, f"{next(NUMBERS)}.0"
        self.access = scene.server.open(self.name, SpeakingEngine(scene.engine.tokenizer), LIMITS, lives_s=3600)
        self.ignored: set[str] = set()
        scene.server._gateway.ignored = self.ignored.update  # type: ignore[method-assign]

    def row(self, client: str, version: str, told: dict[str, Any]) -> Row:
        nodes = self.scene.server.close(self.name, "it is over").nodes
        sequences = len(branches_of(nodes, 1.0).episode.sequences) if nodes else 0
        ROWS[client] = Row(version, told, len(nodes), sequences, self.ignored)
        return ROWS[client]


def uv() -> str:
    """As `tools/venv` finds it."""
    return shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")


async def output(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command writes; its end is waited for."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
        cwd=cwd,
    )
    try:
        async with asyncio.timeout(500):
            out, complaint = await process.communicate()
    except TimeoutError:
        process.kill()
        out, complaint = await process.communicate()
    assert process.returncode == 0, (out[-2000:], complaint[-4000:])
    return out.decode()


def alone(packages: str) -> list[str]:
    """The start of a command in an environment of these packages, each as new as it can be."""
    withs = [word for package in packages.split() for word in ("--with", package)]
    return [uv(), "run", "--quiet", "--isolated", "--no-project", "--python", sys.executable, *withs, "python"]


async def version_of(packages: str) -> str:
    name = re.split(r"[\[ ]", packages)[0]
    return (
        await output(*alone(packages), "-c", f"from importlib.metadata import version as v; print(v('{name}'))")
    ).strip()


@pytest.mark.parametrize("client", [*PACKAGES, *FRAMEWORKS])
async def test_a_package_at_its_newest_does_with_a_policy_what_it_is_for(scene: Scene, client: str) -> None:
    name = "newest.py" if client in PACKAGES else "newest_frameworks.py"
    played, driver = Played(scene), str(Path(__file__).with_name(name))
    packages = {**PACKAGES, **FRAMEWORKS}[client]
    version = await version_of(packages)
    said = await output(*alone(packages), driver, client, played.access.base_url, played.access.api_key)
    row = played.row(client, version, json.loads(said.splitlines()[-1]))
    assert not row.wrong()
    assert row.told


@pytest.fixture(scope="module")
def programs() -> Path:
    """The programs, installed as new as they are."""
    import subprocess

    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(PROGRAMS)]
    subprocess.run([*command, *(f"{name}@latest" for name in NPM.values())], check=True, timeout=900)
    return PROGRAMS / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def modules() -> Path:
    """The driver of modules beside them, installed as new as they are."""
    import subprocess

    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    home = PROGRAMS.with_name("newest-modules")
    names = sorted({name for packages in MODULES.values() for name in packages.split()})
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--prefix",
        str(home),
        *(f"{name}@latest" for name in names),
    ]
    subprocess.run(command, check=True, timeout=900)
    return Path(shutil.copy(Path(__file__).with_name("newest.mjs"), home))


@pytest.mark.parametrize("client", MODULES)
async def test_a_module_at_its_newest_does_with_a_policy_what_it_is_for(
    scene: Scene, modules: Path, client: str
) -> None:
    package = "@openai/agents" if client == "agents" else MODULES[client].split()[0]
    version = json.loads((modules.parent / "node_modules" / package / "package.json").read_text())["version"]
    played = Played(scene)
    said = await output("node", str(modules), client, played.access.base_url, played.access.api_key)
    row = played.row(f"{client} (Node.js)", version, json.loads(said.splitlines()[-1]))
    assert not row.wrong()
    assert row.told


def commands(program: str, where: str, url: str) -> list[str]:
    """How a program is asked one thing, and ends."""
    if program == "claude":
        return [where, "-p", "use the shell", "--model", "claude-sonnet-4-5", "--allowedTools", "Bash"]
    if program == "codex":
        provider = (
            f'model_providers.here={{name="here",base_url="{url}",env_key="OPENAI_API_KEY",wire_api="responses"}}'
        )
        options = ["-c", "model_provider=here", "-c", provider, "-c", "model=gpt-5", "--skip-git-repo-check"]
        return [where, "exec", *options, "--dangerously-bypass-approvals-and-sandbox", "use the shell"]
    return [where, "run", "--model", "here/m", "use the shell"]


@pytest.mark.parametrize("program", NPM)
async def test_a_program_at_its_newest_uses_the_shell_that_a_policy_calls(
    scene: Scene, programs: Path, program: str, tmp_path: Path
) -> None:
    played = Played(scene)
    url, key = played.access.base_url, played.access.api_key
    options = {"baseURL": url, "apiKey": key}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"m": {"name": "m"}}}
    (tmp_path / "opencode.json").write_text(
        json.dumps({"provider": {"here": provider}, "permission": {"bash": "allow"}})
    )
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OPENAI_API_KEY": key,
        "ANTHROPIC_API_KEY": key,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "IS_SANDBOX": "1",
    }
    where = str(programs / program)
    version = (await output(where, "--version", env=env, cwd=tmp_path)).strip()
    said = await output(*commands(program, where, url), env=env, cwd=tmp_path)
    row = played.row(program, version, {"shell": "Submitted" if "forty one" in said else said[-300:]})
    assert not row.wrong()


async def test_lm_evals_loglikelihood_is_the_models(tmp_path: Path, hermes: Tokenizer) -> None:
    words = write_chat_tokenizer(tmp_path / "words", HERMES)
    (end,) = hermes.eos_ids
    model = make_model(tmp_path / "model", 3, vocab_size=hermes.vocab_size, eos_token_id=end)
    for file in words.glob("tokenizer*"):
        (model / file.name).write_bytes(file.read_bytes())
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    engine = TorchEngine(EngineOptions(model_path=model, weight_version="served"), lambda error: None)
    server = ModelServer(engine, Tokenizer.from_dir(model), name="m")
    engine.start()
    server.start()
    packages = "lm-eval[api] transformers"
    try:
        driver = str(Path(__file__).with_name("newest.py"))
        said = await output(*alone(packages), driver, "lm-eval", f"{server.address}/v1", "none", str(model))
        version = await version_of(packages)
    finally:
        await server.stop()
        engine.stop()
    told = json.loads(said.splitlines()[-1])
    texts = [("ab", "c"), ("ab", "d"), ("b", "aa")]
    ids = [[hermes.encode(part, special=False).tolist() for part in pair] for pair in texts]
    expected = [sum(hf_logprobs(model, before, after)) for before, after in ids]
    np.testing.assert_allclose([value for value, _ in told["loglikelihood"]], expected, atol=1e-3)
    assert isinstance(told["generation"], str)
    ROWS["lm-eval"] = Row(version, {"loglikelihood": "the model's"})
