"""A GPU as a pod gets it: the driver's library is there, is new enough for the images' CUDA, and allocates memory."""

import argparse
import ctypes
import sys

CUDA = 13_000  # of the images: 1000 × major + 10 × minor
ALLOCATED = 256 * 1024 * 1024


class CudaError(Exception):
    """A call of the driver that failed."""


def call(cuda, name, *arguments):
    """One call of the driver's library."""
    code = getattr(cuda, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(code, ctypes.byref(text))
        raise CudaError(f"{name} answers {code}: {(text.value or b'unknown').decode(errors='replace')}")


def check(cuda, wanted):
    """Lines about each GPU. Raises CudaError."""
    call(cuda, "cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    major, minor = version.value // 1000, version.value % 1000 // 10
    if version.value < CUDA:
        raise CudaError(
            f"the driver is for CUDA {major}.{minor}, the images need {CUDA // 1000}: install driver 580 or newer"
        )
    if count.value < wanted:
        raise CudaError(f"{count.value} of {wanted} GPUs are visible in the pod")
    yield f"driver for CUDA {major}.{minor}"
    for index in range(count.value):
        device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        name, free, total = ctypes.create_string_buffer(128), ctypes.c_size_t(), ctypes.c_size_t()
        call(cuda, "cuDeviceGet", ctypes.byref(device), index)
        call(cuda, "cuDeviceGetName", name, len(name), device)
        call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            call(cuda, "cuCtxSetCurrent", context)
            call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            call(cuda, "cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(ALLOCATED))
            call(cuda, "cuMemFree_v2", place)
        finally:
            call(cuda, "cuDevicePrimaryCtxRelease_v2", device)
        yield f"GPU {index}: {name.value.decode()}, {free.value / 2**30:.1f} of {total.value / 2**30:.1f} GiB free"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wanted", type=int, default=1)
    parser.add_argument("--library", default="libcuda.so.1")
    asked = parser.parse_args()
    try:
        for line in check(ctypes.CDLL(asked.library), asked.wanted):
            print(line)
    except (OSError, CudaError) as error:
        print(
            f"{error}"
            if isinstance(error, CudaError)
            else f"the driver's library isn't in the pod ({error}): NVIDIA's container runtime puts it there"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
