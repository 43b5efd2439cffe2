"""The images: docker/bake.json names each one, and tools/images builds, pushes and loads what it names."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from support.scripts import TOOLS, script

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "areal"


@pytest.fixture
def machine(tmp_path):
    """Runs tools/images where docker, kind, k3d and ctr write down their calls; returns these and what it said."""

    def command(
        *arguments: str, context: str = "", **variables: str
    ) -> tuple[list[str], subprocess.CompletedProcess[str]]:
        called = tmp_path / "called"
        for name in ("docker", "kind", "k3d", "ctr"):
            (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {called}\n')
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\necho {context}\n")
        for name in ("docker", "kind", "k3d", "ctr", "kubectl"):
            (tmp_path / name).chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
        done = subprocess.run(
            [TOOLS / "images", *arguments], env=environment, capture_output=True, text=True, check=False
        )
        return called.read_text().splitlines() if called.exists() else [], done

    return command


def test_the_bake_file_names_every_dockerfile_and_every_image_of_the_chart():
    images = script("images").images(environ={})
    names = {image.name for image in images}
    assert {image.dockerfile for image in images} == {
        f"docker/{path.name}" for path in (ROOT / "docker").glob("*.Dockerfile")
    }
    assert names == set(yaml.safe_load((CHART / "values.yaml").read_text())["images"])
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert {image.reference for image in images} == {f"localhost/areal/{name}:{version}" for name in names}
    for image in images:  # a build argument that no Dockerfile declares would say nothing
        declared = (ROOT / image.dockerfile).read_text()
        assert [name for name in image.arguments if f"ARG {name}" not in declared] == []


@pytest.mark.parametrize("image", ["sglang", "trainer"])
def test_an_image_that_runs_triton_ends_with_a_compiler(image):
    stages = re.split(r"^FROM ", (ROOT / "docker" / f"{image}.Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    base = stages[-1].split()[0]
    runtime = next(stage for stage in stages if stage.splitlines()[0].endswith(f" AS {base}"))
    installed = [package for line in re.findall(r"/build/compilers ([^;]*)", runtime) for package in line.split()]
    assert {"gcc", "libc6-dev"} <= set(installed), "Triton compiles its launcher at the first kernel"


@pytest.mark.parametrize("file", sorted(ROOT.glob("docker/*.Dockerfile")), ids=lambda file: file.stem)
def test_what_an_image_copies_is_there_and_not_ignored(file):
    seen = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in file.read_text().splitlines() if line.startswith("COPY ")]
    sources = [source for words in copies if not words[0].startswith("--") for source in words]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in seen, source


def test_images_are_built_and_pushed_under_the_registrys_name(machine):
    called, done = machine("build", "--push", "reward", REGISTRY="registry.example.com/", TAG="7", TOOLCHAINS="full")
    reference = "registry.example.com/areal/reward:7"
    [build, push] = called
    assert build.startswith(
        f"docker build --file docker/reward.Dockerfile --tag {reference} --build-arg BASE=docker.io/"
    )
    assert build.endswith("--build-arg ENVIRONMENT=install --build-arg TOOLCHAINS=full .")
    assert push == f"docker push {reference}"
    assert done.stdout.strip().endswith("--set global.imageRegistry=registry.example.com")


@pytest.mark.parametrize(
    ("context", "variables", "loads"),
    [
        ("kind-lab", {}, ("kind load image-archive ", " --name lab")),
        ("k3d-lab", {}, ("k3d image import ", " --cluster lab")),
        ("k3d-lab", {"INTO": "kind"}, ("kind load image-archive ", "redis.tar")),
        ("work", {}, ("ctr --namespace k8s.io images import ", "redis.tar")),
    ],
)
def test_images_are_loaded_into_the_cluster_of_the_current_context(machine, context, variables, loads):
    called, done = machine("load", "redis", context=context, REGISTRY="registry.example.com", **variables)
    [build, save, load] = called
    assert "--tag localhost/areal/redis:" in build
    assert save.startswith("docker save --output /")
    assert (load[: len(loads[0])], load[-len(loads[1]) :]) == loads
    assert done.stdout.strip().endswith("--set global.imagesLoaded=true")


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (("build",), {}, "make images REGISTRY=registry.example.com PUSH=1, or make images-load"),
        (("build", "gpu"), {"REGISTRY": "r"}, "no image is called gpu: there are operator, services"),
        (("load",), {"INTO": "minikube"}, "INTO is kind, k3d or containerd, not 'minikube'"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is(machine, arguments, variables, says):
    called, done = machine(*arguments, **variables)
    assert (called, done.returncode) == ([], 64)
    assert says in done.stderr


@pytest.mark.component
def test_what_every_image_installs_has_a_solution():
    done = subprocess.run([TOOLS / "locks"], capture_output=True, text=True, check=False)
    if done.returncode == 75:
        pytest.skip(f"no package index answers, locks were not resolved: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    images = {one.name for one in script("images").images()}
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"setup", *images}


def test_locks_say_that_no_index_answers():
    environment = {
        **os.environ,
        "UV_INDEX_URL": "http://127.0.0.1:9/simple",
        "UV_HTTP_RETRIES": "0",
        "UV_NO_CACHE": "1",
    }
    done = subprocess.run([TOOLS / "locks", "redis"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert "redis was not resolved, no package index answers" in done.stderr
