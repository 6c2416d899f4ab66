"""A program of its own: what the CUDA driver says about its GPUs, as one JSON line on stdout.

Run by path in a child process, because `cuInit` must not happen in the engine's process: a broken
driver may hang or abort, and forked children of a process that called it can not use CUDA. It makes
no CUDA context, so it takes no device memory and works while another process times a kernel.
"""

import ctypes
import json
import sys

# CUdevice_attribute values of cuda.h.
ATTRIBUTES = {
    "clock_khz": 13,
    "sm_count": 16,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "major": 75,
    "minor": 76,
    "shared_bytes_per_block": 97,
}


def main() -> None:
    """Print `{"devices": [...], "driver": "...", "problem": "..."}`."""
    sys.stdout.write(json.dumps(_query()) + "\n")


def _query() -> dict[str, object]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"devices": [], "driver": "", "problem": f"no NVIDIA driver: {error}"}
    driver = _driver_version()
    status = cuda.cuInit(0)
    if status != 0:
        return {"devices": [], "driver": driver, "problem": f"cuInit failed: {_error_name(cuda, status)}"}
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    devices = [_device(cuda, index) for index in range(count.value)]
    return {"devices": devices, "driver": driver, "problem": "" if devices else "the driver shows no GPU"}


def _device(cuda: ctypes.CDLL, index: int) -> dict[str, object]:
    handle = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), handle)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    facts: dict[str, object] = {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "memory_bytes": memory.value,
        "pci": _bus_address(cuda, handle),
    }
    for key, attribute in ATTRIBUTES.items():
        value = ctypes.c_int()
        status = cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        facts[key] = value.value if status == 0 else 0
    return facts


def _bus_address(cuda: ctypes.CDLL, handle: ctypes.c_int) -> str:
    address = ctypes.create_string_buffer(32)
    status = cuda.cuDeviceGetPCIBusId(address, len(address), handle)
    return address.value.decode() if status == 0 else ""


def _error_name(cuda: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(text))
    return f"{text.value.decode() if text.value else 'error'} ({status})"


def _driver_version() -> str:
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    if nvml.nvmlInit_v2() != 0:
        return ""
    version = ctypes.create_string_buffer(96)
    found = nvml.nvmlSystemGetDriverVersion(version, len(version)) == 0
    nvml.nvmlShutdown()
    return version.value.decode(errors="replace") if found else ""


if __name__ == "__main__":
    main()
