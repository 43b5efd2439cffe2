"""A gateway by HTTPS: agents' own clients trust it by what their environment names, and nobody reads along."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from areal import tls
from areal.gateway.session import SessionLimits
from areal.workflow.command import CommandAgent
from areal.workflow.interpreter.client import ChildInterpreter, Target
from areal.workflow.tokenizer import Tokenizer
from support.certificates import authority, leaf, put
from support.chat_tokenizer import write_chat_tokenizer
from support.gateway_scene import ASK, Scene, scene_of
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

PROMPT = "a prompt that nobody may see"
OPENAI = """
import openai
said = openai.OpenAI(max_retries=0).chat.completions.create(model="any", messages=[{"role": "user", "content": "q"}])
print(len(said.choices[0].message.content))
"""
AIOHTTP = """
import aiohttp, asyncio, os
async def main():
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = {"model": "any", "messages": [{"role": "user", "content": "q"}]}
    async with aiohttp.ClientSession(headers=headers) as client:
        async with client.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json=body) as said:
            print(len((await said.json())["choices"][0]["message"]["content"]))
asyncio.run(main())
"""
REQUESTS = """
import os, requests
said = requests.post(os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    headers={"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    json={"model": "any", "messages": [{"role": "user", "content": "q"}]})
print(len(said.json()["choices"][0]["message"]["content"]))
"""
NODE = """
fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {method: "POST",
  headers: {authorization: "Bearer " + process.env.OPENAI_API_KEY, "content-type": "application/json"},
  body: JSON.stringify({model: "any", messages: [{role: "user", content: "q"}]})})
  .then(said => said.json()).then(said => console.log(said.choices[0].message.content.length))
  .catch(error => {console.error(String(error.cause)); process.exit(1)})
"""
CURL = """curl -sSf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" \
-H 'content-type: application/json' \
-d '{"model": "any", "messages": [{"role": "user", "content": "q"}]}' >&2 && echo 3"""
CLIENTS = {
    "openai": [sys.executable, "-c", OPENAI],
    "aiohttp": [sys.executable, "-c", AIOHTTP],
    "requests": [sys.executable, "-c", REQUESTS],
    "node": ["node", "-e", NODE],
    "curl": ["sh", "-c", CURL],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_dir(write_chat_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process' certificates, of `old`; what agents are told of it goes with the test."""
    for name in tls.TrustFile.VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv(tls.ENV_TLS_DIR, str(tmp_path / "tls"))
    return tmp_path / "tls"


@pytest.fixture
async def scene(ours: Path, tokenizer: Tokenizer) -> AsyncIterator[Scene]:
    root = authority()
    put(ours, leaf(root), root)
    async with scene_of(tokenizer, "gateway", SessionLimits(64, 8192, 64)) as made:
        yield made


async def played(scene: Scene, client: str, **env: str) -> float | None:
    """The number that a client of another package or language printed last."""
    if shutil.which(CLIENTS[client][0]) is None:
        pytest.skip(f"{client} isn't installed here")
    agent = CommandAgent(CLIENTS[client], env=env)
    return (await agent.run({}, base_url=scene.access.base_url, api_key=scene.access.api_key)).reward


def named(bundle: Path) -> bytes:
    """The authorities that agents are told of."""
    return bundle.read_bytes()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_of_any_kind_trusts_the_gateway_by_its_environment_and_only_so(scene: Scene, client: str):
    assert scene.access.base_url.startswith("https://127.0.0.1:")
    with pytest.raises(Exception, match=r"(?i)certificate"):
        await played(scene, client)
    trust = tls.TrustFile()
    assert await played(scene, client) == len("the")
    del trust
    with pytest.raises(FileNotFoundError):  # it goes with who wrote it
        named(Path(os.environ["SSL_CERT_FILE"]))


async def test_an_agent_in_a_python_of_its_own_is_given_a_client_that_trusts_the_gateway(scene: Scene, tmp_path: Path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "async def talk(row, *, base_url, api_key, http_client, **extra):\n"
        "    headers = {'authorization': f'Bearer {api_key}'}\n"
        f"    said = await http_client.post(f'{{base_url}}/chat/completions', json={ASK!r}, headers=headers)\n"
        "    return float(len(said.json()['choices'][0]['message']['content']))\n"
    )
    trust = tls.TrustFile()
    child = ChildInterpreter(Target("agent", "talk", sys.executable, str(recipe))).start()
    asked = {"row": {}, "base_url": scene.access.base_url, "api_key": scene.access.api_key}
    assert await (await child.process()).call("agent", **asked) == 3.0
    del trust


async def test_whoever_speaks_plain_http_or_trusts_another_is_hung_up_on(scene: Scene):
    plain = scene.access.base_url.replace("https:", "http:")
    async with httpx.AsyncClient(timeout=20) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(f"{plain}/chat/completions", json=ASK)
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.post(f"{scene.access.base_url}/chat/completions", json=ASK)
    assert scene.engine.asked == []


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_sniffer_sees_prompt_and_key_only_without_tls(
    ours: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, encrypted: bool
):
    if encrypted:
        root = authority()
        put(ours, leaf(root), root)
    else:
        monkeypatch.delenv(tls.ENV_TLS_DIR)
    body = {"model": "any", "messages": [{"role": "user", "content": PROMPT}]}
    async with scene_of(tokenizer, "gateway", SessionLimits(64, 8192, 64)) as scene:
        base = httpx.URL(scene.access.base_url)
        async with TcpProxy(base.port) as sniffer:
            answered = await scene.ask(body, url=f"{base.copy_with(port=sniffer.port)}/chat/completions")
            seen = bytes(sniffer.seen)
    assert answered.status_code == 200
    assert len(seen) > 300
    key = scene.access.api_key.encode()
    assert (PROMPT.encode() in seen, key in seen) == (not encrypted, not encrypted)


async def test_new_connections_are_shown_the_newest_certificate_and_agents_are_told_of_a_new_authority(
    ours: Path, tokenizer: Tokenizer
):
    old, new = authority(), authority()
    put(ours, leaf(old), old)
    trust = tls.TrustFile()
    bundle = Path(os.environ["SSL_CERT_FILE"])
    usual = named(bundle).removesuffix(b"\n" + old[0].encode())
    assert usual.count(b"BEGIN CERTIFICATE") > 50, "an agent may call others, too"
    async with scene_of(tokenizer, "gateway", SessionLimits(64, 8192, 64)) as scene:
        assert await played(scene, "aiohttp") == 3
        for shown, trusted in ((old, (old, new)), (new, (old, new)), (new, (new,))):
            put(ours, leaf(shown), *trusted)
            trust.renew()
            assert named(bundle) == usual + b"\n" + "".join(crt for crt, _ in trusted).encode()
            assert await played(scene, "aiohttp") == 3
        (bundle.parent / "old").write_bytes(usual + b"\n" + old[0].encode())
        with pytest.raises(Exception, match=r"(?i)certificate"):
            await played(scene, "aiohttp", SSL_CERT_FILE=str(bundle.parent / "old"))
