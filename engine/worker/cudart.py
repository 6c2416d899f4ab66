"""The few CUDA runtime calls torch does not offer, through the libcudart that torch itself loaded.

Every call checks its return code. Nothing here may be used before `torch.cuda.init()`.
"""

import ctypes
import functools

IPC_HANDLE_BYTES = 64
LIMIT_PERSISTING_L2 = 6  # cudaLimitPersistingL2CacheSize
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class CudaError(RuntimeError):
    """A CUDA runtime call failed; `code` is its cudaError_t."""

    def __init__(self, call, code, text):
        super().__init__(f"{call} failed with CUDA error {code} ({text})")
        self.code = code


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES)]


@functools.lru_cache(maxsize=1)
def library():
    """The loaded libcudart, found in this process's memory map so that no second copy is loaded."""
    import torch

    torch.cuda.init()
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split(None, 5)[5].strip() for line in maps if "libcudart" in line})
    if not paths:
        raise RuntimeError("torch loaded no libcudart, so CUDA memory cannot be shared between processes")
    found = ctypes.CDLL(paths[0])
    found.cudaGetErrorString.restype = ctypes.c_char_p
    found.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), _IpcHandle, ctypes.c_uint]
    found.cudaIpcGetMemHandle.argtypes = [ctypes.POINTER(_IpcHandle), ctypes.c_void_p]
    found.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
    found.cudaFree.argtypes = [ctypes.c_void_p]
    found.cudaDeviceSetLimit.argtypes = [ctypes.c_int, ctypes.c_size_t]
    found.cudaDeviceGetLimit.argtypes = [ctypes.POINTER(ctypes.c_size_t), ctypes.c_int]
    return found


def _check(call, code):
    if code:
        # Reading the error also clears it, so that it is not blamed on a later call.
        library().cudaGetLastError()
        raise CudaError(call, code, library().cudaGetErrorString(code).decode())


def malloc(size):
    """Device address of `size` bytes that belong to no allocator."""
    address = ctypes.c_void_p()
    try:
        _check("cudaMalloc", library().cudaMalloc(ctypes.byref(address), size))
    except CudaError as error:
        import torch

        if error.code != OUT_OF_MEMORY:
            raise
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / (1 << 30):.2f} GiB.") from error
    return address.value


def free(address):
    """Give back what `malloc` gave."""
    _check("cudaFree", library().cudaFree(address))


def export_handle(address):
    """The IPC handle of a whole `malloc` allocation, as hex text."""
    handle = _IpcHandle()
    _check("cudaIpcGetMemHandle", library().cudaIpcGetMemHandle(ctypes.byref(handle), address))
    return bytes(handle).hex()


def open_handle(text):
    """Device address, in this process, of another process's allocation."""
    handle = _IpcHandle.from_buffer_copy(bytes.fromhex(text))
    address = ctypes.c_void_p()
    lazy_peer_access = 1
    _check("cudaIpcOpenMemHandle", library().cudaIpcOpenMemHandle(ctypes.byref(address), handle, lazy_peer_access))
    return address.value


def last_error():
    """Code and text of the pending error, (0, "") if there is none. Clears it unless it is sticky."""
    code = library().cudaGetLastError()
    return code, library().cudaGetErrorString(code).decode() if code else ""


def persisting_l2():
    """Bytes of L2 set aside for persisting accesses; 0 where the device has no such thing."""
    value = ctypes.c_size_t()
    if library().cudaDeviceGetLimit(ctypes.byref(value), LIMIT_PERSISTING_L2):
        library().cudaGetLastError()
        return 0
    return value.value


def reset_persisting_l2():
    """Give all of L2 back to normal use. Devices that have no persisting L2 refuse, which is as good."""
    if library().cudaDeviceSetLimit(LIMIT_PERSISTING_L2, 0):
        library().cudaGetLastError()
    if library().cudaCtxResetPersistingL2Cache():
        library().cudaGetLastError()
