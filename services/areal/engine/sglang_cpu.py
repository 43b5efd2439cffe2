"""`python -m areal.engine.sglang_cpu …`: stock SGLang on a machine without CUDA.

SGLang's import graph names GPU packages that its CPU paths never call. This module puts stand-ins in their place and
then runs SGLang's own launcher. A stand-in computes nothing: using one raises `MissingKernel` with its name, so a model
that needs a real kernel fails at once instead of answering wrongly. It refuses to run where CUDA is available.

Written against sglang 0.5.23; import it before anything of SGLang, and in every process that SGLang spawns.
"""

import importlib
import importlib.abc
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

SUPPORTED = "0.5.23"
STAND_INS = ("triton", "torchvision")  # imported for decorators and for models that see; absent from CPU installs
KERNELS = "sgl_kernel"  # its wheels hold CUDA code only
OPERATORS = (  # the module of Qwen-VL's processor imports those who ask for them
    "fused_sigmoid_mul_cpu", "fused_qk_gemma_rmsnorm_cpu", "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
)  # fmt: skip


class MissingKernel(RuntimeError):
    """SGLang called something that has no CPU implementation here."""

    def __init__(self, name: str) -> None:
        super().__init__(f"SGLang needs {name}, which does not exist on this CPU: use a GPU or the embedded engine")


class Absent:
    """A name out of a missing package. It may be imported, subclassed, used as a decorator; nothing else works."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Absent(f"{self.__name__}.{attribute}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options and callable(args[0]):
            return args[0]  # @triton.jit
        if not args or self.__name__.rpartition(".")[2] in ("jit", "autotune", "heuristics", "Config"):
            return lambda function: function  # @triton.jit(…), and what is given to it
        raise MissingKernel(self.__name__)

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __getitem__(self, _key: Any) -> Any:
        return self  # kernel[grid], which then is called

    def __or__(self, other: Any) -> Any:
        return other  # X | None in an annotation

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False


class AbsentModule(ModuleType):
    """A missing package or module: every name in it is `Absent`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = sys.modules.get(f"{self.__name__}.{name}")
        return Absent(f"{self.__name__}.{name}") if found is None else found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for packages that are not installed, and for everything below them."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = frozenset(roots)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self._roots:
            return None
        return ModuleSpec(fullname, self, origin="stand-in", is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]
        if module.__name__ == "triton":
            module.cdiv = lambda a, b: -(-a // b)  # type: ignore[attr-defined]
            module.next_power_of_2 = lambda n: 1 << max(0, n - 1).bit_length()  # type: ignore[attr-defined]


def install() -> None:
    """Put the stand-ins in place. Idempotent; asks the real libraries first, so that they don't believe in them."""
    import torch

    if torch.cuda.is_available():
        raise RuntimeError("CUDA is available: start stock SGLang itself (python -m sglang.launch_server)")
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # of towers' functions: a fork of a CUDA build can't compile
    _ask_truthfully()
    missing = [root for root in STAND_INS if importlib.util.find_spec(root) is None]
    sys.modules[KERNELS] = kernels = _kernels(torch)
    for name in OPERATORS:
        setattr(torch.ops.sgl_kernel, name, getattr(kernels, name))
    sys.meta_path.append(_Finder(missing))
    if "torchvision" in missing:
        _forgo_videos()
    _unpin(torch)


def _ask_truthfully() -> None:
    """torch and transformers cache whether these packages exist; let them find out before there are stand-ins."""
    probes = {
        "torch.utils._triton": ("has_triton_package", "has_triton"),
        "transformers.utils.import_utils": ("is_torchvision_available", "is_torchvision_v2_available"),
    }
    for module_name, functions in probes.items():
        module = importlib.import_module(module_name)
        for name in functions:
            probe: Callable[[], Any] | None = getattr(module, name, None)
            if probe is not None:
                probe()


def _forgo_videos() -> None:
    """Make processors of images without one of videos, which torchvision alone computes: Pillow cuts images as well."""
    mixin = importlib.import_module("transformers.processing_utils").ProcessorMixin
    attributes = mixin.get_attributes.__func__
    mixin.get_attributes = classmethod(lambda cls: [name for name in attributes(cls) if name != "video_processor"])


def _kernels(torch: Any) -> ModuleType:
    """SGLang's kernel package with the one function that its CPU paths need for dense text models."""

    def assign_req_to_token_pool_cpu(
        requests: Any, table: Any, starts: Any, ends: Any, locations: Any, _width: int
    ) -> None:
        """Write each request's new cache locations into its row of the table, from its start to its end."""
        lengths = (ends - starts).tolist()
        for request, start, part in zip(
            requests.tolist(), starts.tolist(), torch.split(locations, lengths), strict=True
        ):
            table[request, start : start + len(part)] = part.to(table.dtype)

    module = _KernelModule(KERNELS)
    module.__path__ = []
    module.__spec__ = ModuleSpec(KERNELS, None, origin="stand-in", is_package=True)
    module.__version__ = "0.0.0+cpu"  # type: ignore[attr-defined]
    module.assign_req_to_token_pool_cpu = assign_req_to_token_pool_cpu  # type: ignore[attr-defined]
    return module


class _KernelModule(ModuleType):
    """Names resolve, so that `from sgl_kernel import x` works; calling one raises."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_args: Any, **_options: Any) -> Any:
            raise MissingKernel(f"{KERNELS}.{name}")

        missing.__name__ = name
        return missing


def _unpin(torch: Any) -> None:
    """Pinned memory speeds up copies to a GPU; without one, asking for it fails, and not having it changes nothing."""

    def unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **options: Any) -> Any:
            options.pop("pin_memory", None)
            return make(*args, **options)

        return made

    for name in ("tensor", "empty", "zeros", "ones", "full"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.get_device_module = lambda *_: torch.cpu  # a CUDA build would answer torch.cuda, whose synchronize() raises
    torch.Tensor.pin_memory = lambda tensor, *_args, **_options: tensor
    registered = SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0)
    torch.cuda.cudart = lambda: registered  # the cache of routed experts asks for it by address


def fork_children() -> None:
    """Let SGLang's processes inherit what is imported: half the start time. Needs one OpenMP thread."""
    start_method = multiprocessing.set_start_method

    def forked(_method: str | None = None, force: bool = False) -> None:
        start_method("fork", force=True)

    multiprocessing.set_start_method = forked  # type: ignore[assignment]


def main(argv: Sequence[str]) -> None:
    """Run SGLang's HTTP server until it is stopped."""
    from importlib.metadata import version

    found = version("sglang")
    if found != SUPPORTED:
        sys.exit(f"error: this machine has sglang {found}; on CPU only {SUPPORTED} is known to work")
    install()
    if os.environ.get("OMP_NUM_THREADS") == "1":
        fork_children()
    launch = importlib.import_module("sglang.launch_server")
    prepare = importlib.import_module("sglang.srt.server_args").prepare_server_args
    try:
        launch.run_server(prepare(list(argv)))
    finally:
        importlib.import_module("sglang.srt.utils").kill_process_tree(os.getpid(), include_parent=False)


if multiprocessing.parent_process() is not None or __name__ == "__mp_main__":
    install()  # a spawned process imports this file again before it unpickles anything of SGLang

if __name__ == "__main__":
    main(sys.argv[1:])
