"""Engines are started with their settings, replaced when they die, and never outlive their agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from areal.errors import DataError, InfraError
from areal.generation import engine_process
from areal.generation.engine_client import EngineClient
from areal.generation.engine_command import AdapterRoom, EngineStart, Launch, cuda_of, launch
from areal.generation.engine_process import EngineProcess
from areal.generation.main import seed_kernels
from areal.observe.waits import WaitRegistry
from areal.processes.core import BudgetPolicy
from areal.processes.family import lend_keeper
from areal.spec.serving import EmbeddedEngineBlock, SglangEngine
from support.processes import lives
from support.redis_server import free_port

START = EngineStart(Path("/models/m"), Path("/models/t"), "3.f1", 4000, 16, "key")
SLEEPER = "import http.server, sys; " + (
    "h = type('H', (http.server.BaseHTTPRequestHandler,), "
    "{'do_GET': lambda s: (s.send_response(200), s.send_header('content-length', '0'), s.end_headers())}); "
    "http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), h).serve_forever()"
)


ON_CPU = SglangEngine(type="sglang", tensor_parallel=2, extra_args=["--sampling-backend", "pytorch"])
ON_GPUS = ON_CPU.model_copy(
    update={"gpus": 2, "context_length": 4096, "mem_fraction": 0.7, "python": "/opt/sglang/bin/python"}
)


@pytest.mark.parametrize("engine", [EmbeddedEngineBlock(), ON_CPU, ON_GPUS])
def test_every_engine_is_told_the_same_facts(engine):
    argv = launch(engine, START).argv
    for flag, value in (("--weight-version", "3.f1"), ("--port", "4000"), ("--stream-interval", "16")):
        assert argv[argv.index(flag) + 1] == value
    assert argv[argv.index("--model-path") + 1] == "/models/m"


def test_sglang_runs_stock_on_gpus_and_behind_stand_ins_without():
    on_gpu, on_cpu = launch(ON_GPUS, START).argv, launch(ON_CPU, START).argv
    assert on_gpu[:3] == ["/opt/sglang/bin/python", "-m", "sglang.launch_server"]
    assert on_gpu[on_gpu.index("--tp-size") + 1] == "2"
    assert on_gpu[on_gpu.index("--context-length") + 1] == "4096"
    assert on_gpu[on_gpu.index("--mem-fraction-static") + 1] == "0.7"
    assert on_cpu[1:3] == ["-m", "areal.engine.sglang_cpu"]
    assert on_gpu[-2:] == on_cpu[-2:] == ["--sampling-backend", "pytorch"]


def test_no_request_makes_sglang_compile_its_sampler_unless_the_job_asks_for_it():
    plain = ON_GPUS.model_copy(update={"extra_args": []})
    argv = launch(plain, START).argv
    assert argv[argv.index("--sampling-backend") + 1] == "pytorch"
    named = launch(ON_GPUS.model_copy(update={"extra_args": ["--sampling-backend", "flashinfer"]}), START).argv
    assert named[-2:] == ["--sampling-backend", "flashinfer"], "the last one counts"


@pytest.mark.parametrize("engine", [ON_CPU, ON_GPUS])
def test_sglang_scales_images_as_the_trainer_does(engine, tmp_path):
    assert "--image-processor-backend" not in launch(engine, START).argv
    (tmp_path / "preprocessor_config.json").write_text("{}")
    argv = launch(engine, replace(START, model_path=tmp_path)).argv
    assert argv[argv.index("--image-processor-backend") + 1] == "pil", "torchvision's pixels are up to 4 of 255 apart"


def test_sglang_has_the_python_that_the_job_or_its_image_names(monkeypatch):
    unnamed = ON_GPUS.model_copy(update={"python": None})
    assert launch(unnamed, START).argv[0] == sys.executable
    monkeypatch.setenv("SGLANG_PYTHON", "/opt/areal/sglang/bin/python")
    assert launch(unnamed, START).argv[0] == "/opt/areal/sglang/bin/python"
    assert launch(ON_GPUS, START).argv[0] == "/opt/sglang/bin/python"


class Watched:
    """An engine process around any command, and what its owner was told."""

    def __init__(self, code: str, **budget) -> None:
        self.port = free_port()
        self.ups = 0
        self.reasons: list[str] = []
        self.up = asyncio.Event()
        self.client = EngineClient(self.port, embedded=True)
        self.process = EngineProcess(
            self.client,
            lambda: Launch([sys.executable, "-c", code, str(self.port)], {}),
            on_up=self._up,
            on_down=self.reasons.append,
            stalled_s=lambda: 0.0,
            waits=WaitRegistry("generation-0"),
            budget=BudgetPolicy(**budget),
        )

    async def _up(self) -> None:
        self.ups += 1
        self.up.set()


@pytest.mark.parametrize(("answers", "lives"), [([True], True), ([False, False, True], True), ([False] * 4, False)])
async def test_silence_is_one_wait_from_the_first_question_on(monkeypatch, answers: list[bool], lives: bool):
    watched, clock = Watched("", max_restarts=0), iter(range(100))
    waits = watched.process._waits = WaitRegistry("generation-0", lambda: next(clock))
    heard = []

    async def healthy(timeout_s: float) -> bool:
        heard.append([(wait.name, wait.age_s) for wait in waits.list()])
        return answers.pop(0)

    monkeypatch.setattr(watched.client, "healthy", healthy)
    monkeypatch.setattr(engine_process, "HEALTH_PERIOD_S", 0.0)
    assert await watched.process._answers() is lives
    assert heard == [[("engine.health", age)] for age in range(1, len(heard) + 1)]
    assert (answers, waits.list()) == ([], [])
    await watched.client.close()


@pytest.mark.component
async def test_a_killed_engine_is_started_again_and_a_stopped_one_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    watched = Watched(SLEEPER)
    running = asyncio.create_task(watched.process.run())
    await asyncio.wait_for(watched.up.wait(), 60)
    assert not list(tmp_path.iterdir()), "a killed agent would leave it behind"
    first = watched.process.pid
    watched.up.clear()
    os.kill(first, signal.SIGKILL)
    await asyncio.wait_for(watched.up.wait(), 60)
    second = watched.process.pid
    await watched.process.stop()
    await asyncio.wait_for(running, 60)
    await watched.client.close()
    assert watched.reasons == ["it ended, killed by SIGKILL"]
    assert first != second
    assert not psutil.pid_exists(second)


@pytest.mark.component
async def test_an_engine_that_never_answers_is_given_up_with_its_reason():
    watched = Watched("raise SystemExit(7)")
    with pytest.raises(InfraError, match="exit 7"):
        await asyncio.wait_for(watched.process.run(), 60)
    await watched.client.close()
    assert watched.ups == 0
    assert watched.process.starts == 3


@pytest.mark.component
async def test_an_engine_that_refuses_its_model_ends_the_agent_with_its_own_sentence(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchForCausalLM"], "model_type": "none"}')
    code = f"import sys; from areal.engine.main import main; sys.exit(main({_MAIN.format(tmp_path)}))"
    watched = Watched(code)
    with pytest.raises(DataError, match="NoSuchForCausalLM"):
        await asyncio.wait_for(watched.process.run(), 60)
    await watched.client.close()
    assert watched.process.starts == 1


_MAIN = "['--model-path', '{}', '--port', sys.argv[1]]"


@pytest.mark.component
def test_an_engine_dies_with_its_agent_whatever_kills_the_agent():
    agent = (
        "import sys, time; from areal.processes.family import Command, Family; "
        "family = Family.start(Command('engine', [sys.executable, '-c', 'import time; time.sleep(60)']), 2)\n"
        "while not family.pid: time.sleep(0.01)\n"
        "print(family.pid, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", agent], stdout=subprocess.PIPE)
    engine = psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.wait()
    psutil.wait_procs([engine], timeout=60)
    assert not lives(engine)


def cuda_wheels(tmp_path: Path) -> Path:
    """A Python with CUDA's wheels beside it, as `docker/cuda_home` leaves them."""
    home = tmp_path / "sglang/lib/python3.11/site-packages/nvidia/cu13"
    (home / "lib").mkdir(parents=True)
    (home / "lib64").symlink_to("lib")
    return tmp_path / "sglang/bin/python"


def test_sglang_compiles_with_the_wheels_beside_its_python_unless_the_machine_has_cuda(tmp_path):
    python = cuda_wheels(tmp_path)
    home = tmp_path / "sglang/lib/python3.11/site-packages/nvidia/cu13"
    assert cuda_of(python, {}) == {"CUDA_HOME": str(home), "LD_LIBRARY_PATH": f"{home}/lib"}
    assert cuda_of(python, {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"})["LD_LIBRARY_PATH"] == (
        f"{home}/lib:/usr/local/nvidia/lib64"
    )
    assert cuda_of(python, {"CUDA_HOME": "/usr/local/cuda"}) == {}
    assert cuda_of(Path("/usr/bin/python3"), {}) == {}
    engine = ON_GPUS.model_copy(update={"python": str(python)})
    assert launch(engine, START).env["CUDA_HOME"] == str(home)


def test_a_first_start_on_gpus_has_time_to_compile():
    assert (
        launch(ON_GPUS, START).start_s
        == 1800
        > launch(ON_CPU, START).start_s
        == launch(EmbeddedEngineBlock(), START).start_s
    )


def kernel(place: Path, module: str, text: str) -> Path:
    path = place / "sm_90a" / module / "build-1" / "deps-1" / f"{module}.so"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_an_image_s_kernels_fill_the_cache_and_replace_nothing(tmp_path, monkeypatch):
    image, cache = tmp_path / "image", tmp_path / "cache"
    kernel(image, "activation", "made at build")
    kernel(image, "rope", "made at build")
    own = kernel(cache, "rope", "made by a server")
    assert seed_kernels() == 0, "an image without kernels, or a process without a cache"
    monkeypatch.setenv("AREAL_KERNELS", str(image))
    monkeypatch.setenv("SGLANG_JIT_CACHE_DIR", str(cache))
    assert seed_kernels() == 1
    assert seed_kernels() == 0
    made = [path.relative_to(cache) for path in sorted(cache.rglob("*.so"))]
    assert [path.parts[1] for path in made] == ["activation", "rope"]
    assert own.read_text() == "made by a server"
    assert list(cache.rglob(".seed-*")) == []


def test_a_cache_without_room_costs_a_compilation_and_no_server(tmp_path, monkeypatch):
    kernel(tmp_path / "image", "rope", "made at build")
    monkeypatch.setenv("AREAL_KERNELS", str(tmp_path / "image"))
    monkeypatch.setenv("SGLANG_JIT_CACHE_DIR", str(tmp_path / "cache"))

    def full(source, place, **flags):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copytree", full)
    assert seed_kernels() == 0
    assert list((tmp_path / "cache").rglob("*.so")) == list((tmp_path / "cache").rglob(".seed-*")) == []


class Container:
    """Another container: a Python and an environment of its own, and a directory that both see."""

    def __init__(self, place: Path) -> None:
        command = ["python3", "-I", "-S", "-u", place / "keeper.py", "--serve", place / "keeper.sock"]
        self.process = subprocess.Popen(command, cwd="/", env={"PATH": os.environ["PATH"], "IMAGE": "upstream"})

    def kill(self) -> None:
        """As the kubelet does, and as a full memory does: everything in it."""
        for one in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            one.kill()
        self.process.wait()


@pytest.fixture
def shared_place():
    with tempfile.TemporaryDirectory(prefix="areal-") as short:  # a socket's path has 108 bytes
        lend_keeper(Path(short))
        yield Path(short)


@pytest.mark.component
async def test_an_engine_in_another_container_is_started_killed_and_started_again(shared_place, tmp_path):
    container, seen = Container(shared_place), tmp_path / "seen"
    noted = f"import os; open({str(seen)!r}, 'a').write(os.environ.get('IMAGE', 'none') + os.environ['TOLD'] + ' ')\n"
    watched = Watched("")
    watched.process._command = lambda: Launch(
        ["python3", "-c", noted + SLEEPER, str(watched.port)], {"TOLD": "!"}, place=shared_place
    )
    running = asyncio.create_task(watched.process.run())
    pids = []
    for ends in ("SIGKILL", "its container", "nothing"):
        await asyncio.wait_for(watched.up.wait(), 60)
        watched.up.clear()
        pids.append(watched.process.pid)
        if ends == "SIGKILL":
            os.kill(pids[-1], signal.SIGKILL)
        elif ends == "its container":
            container.kill()
            container = Container(shared_place)
    await watched.process.stop()
    await asyncio.wait_for(running, 60)
    await watched.client.close()
    assert watched.process.starts == watched.ups == len(set(pids)) == 3
    assert watched.reasons == ["it ended, killed by SIGKILL"] * 2
    assert not any(psutil.pid_exists(pid) and lives(psutil.Process(pid)) for pid in pids)
    assert seen.read_text() == "upstream! " * 3, "its own environment, and what it is told"
    container.process.terminate()
    assert container.process.wait(15) == 0


@pytest.mark.component
async def test_a_container_that_never_comes_ends_the_agent_with_its_name(shared_place):
    watched = Watched("")
    watched.process._command = lambda: Launch(["true"], {}, 0.3, shared_place)
    with pytest.raises(InfraError, match=r"no container serves .* engine is to run there"):
        await asyncio.wait_for(watched.process.run(), 60)
    await watched.client.close()


def test_an_upstream_image_is_asked_for_its_own_python_and_keeps_its_own_cuda(monkeypatch):
    monkeypatch.setenv("AREAL_ENGINE_PLACE", "/areal/engine")
    monkeypatch.setenv("SGLANG_PYTHON", "/opt/areal/sglang/bin/python")
    monkeypatch.setenv("SGLANG_JIT_CACHE_DIR", "/areal/kernels/sglang/jit")
    unnamed = ON_GPUS.model_copy(update={"python": None})
    made = launch(unnamed, START)
    assert made.place == Path("/areal/engine")
    assert made.argv[:3] == ["python3", "-m", "sglang.launch_server"]
    assert made.env["SGLANG_JIT_CACHE_DIR"] == "/areal/kernels/sglang/jit"
    assert not {"CUDA_HOME", "LD_LIBRARY_PATH", "PATH", "SGLANG_PYTHON"} & made.env.keys()
    assert launch(ON_GPUS, START).argv[0] == "/opt/sglang/bin/python", "unless the job names another"
    assert launch(ON_CPU, START).place is None
    monkeypatch.delenv("AREAL_ENGINE_PLACE")
    assert made.argv[1:] == launch(unnamed, START).argv[1:], "the same flags as in our image"


PARSES = """
import json, sys
from sglang.srt.server_args import prepare_server_args
for argv in json.load(sys.stdin):
    args = prepare_server_args(argv)
    values = {name: getattr(args, name) for name in dir(type(args)) + list(vars(args)) if not name.startswith("_")}
    print(json.dumps({name: value for name, value in values.items() if isinstance(value, (int, str, float, list))}))
"""


def every_command() -> list[list[str]]:
    """What follows `sglang.launch_server`, with all flags that are ever given, and with the fewest."""
    plain = SglangEngine(type="sglang", gpus=1, dtype="bfloat16")
    room = AdapterRoom(rank=32, targets=("q_proj", "o_proj"), slots=3)
    full = replace(START, fp32_head=True, shared=True, adapters=room)
    return [launch(engine, start).argv[3:] for engine, start in ((plain, START), (ON_GPUS, full))]


@pytest.mark.sglang_real
@pytest.mark.component
@pytest.mark.timeout(900)
def test_stock_sglangs_own_parser_takes_every_command(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "intermediate_size": 128, '
        '"max_position_embeddings": 8192}'
    )
    commands = [
        [word if word not in ("/models/m", "/models/t") else str(tmp_path) for word in argv] for argv in every_command()
    ]
    asked = [sys.executable, "-c", PARSES]
    done = subprocess.run(asked, input=json.dumps(commands), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    plain, full = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    for args in (plain, full):
        assert (args["host"], args["port"], args["stream_interval"], args["weight_version"]) == (
            "127.0.0.1",
            4000,
            16,
            "3.f1",
        )
    assert (plain["tp_size"], full["tp_size"]) == (1, 2)
    assert (full["context_length"], full["mem_fraction_static"], full["sampling_backend"]) == (4096, 0.7, "pytorch")
    assert (full["max_lora_rank"], full["max_loras_per_batch"], full["enable_memory_saver"]) == (32, 3, True)
