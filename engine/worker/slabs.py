"""Memory that judge and candidate share: one flat block of bytes, on the GPU or in a file.

On the GPU a slab is its own cudaMalloc allocation, exported by a CUDA IPC handle, so that nothing
else of the judge is mapped into the candidate. Where IPC does not work, both sides have their own
device block and meet in a shared file (`publish` and `fetch` copy). On the CPU it is a shared file.

Tensors lie between guard bands of a recognisable NaN. `Layout` says where.
"""

import ctypes
import os

import torch

GUARD_BYTES = 4096
ALIGN_BYTES = 256
POISON_WORD = 0x7FFB7FFB  # A NaN in fp64, fp32, bf16 and fp16, and none that arithmetic makes.
CHUNK_WORDS = 1 << 23
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
                 "complex64", "complex128")
}
_kept = []


class Slab:
    """One shared block. `bytes` is its uint8 tensor on the device of use."""

    def __init__(self, data, transport, path=None, handle=None, mirror=None):
        self.bytes, self.transport, self.path, self.handle, self._mirror = data, transport, path, handle, mirror

    @classmethod
    def create(cls, path, size, device, host_copies=False):
        """Make a slab of `size` bytes. `path` is where its file goes, if it needs one."""
        size = _round_up(size, 1 << 16)
        if device.type == "cpu":
            return cls(_file(path, size), "shared memory", path=path)
        from _hiera_worker import cudart

        size = _round_up(size, 1 << 21)  # IPC maps pages of 2 MiB: nothing else of ours may lie in them.
        address = cudart.malloc(size)
        data = device_bytes(address, size, device)
        if not host_copies:
            try:
                return cls(data, "cuda ipc", handle=cudart.export_handle(address))
            except cudart.CudaError:
                pass  # Some virtual machines have no IPC: then through the host.
        return cls(data, "host copies", path=path, mirror=_file(path, size))

    def describe(self):
        """What another process needs for `open`."""
        return {"transport": self.transport, "path": self.path, "handle": self.handle, "size": self.bytes.numel()}

    @classmethod
    def open(cls, described, device):
        """Map another process's slab."""
        transport, size = described["transport"], described["size"]
        if described["path"] and not os.path.exists(described["path"]):
            raise RuntimeError("the shared memory is gone: " + described["path"])
        if transport == "shared memory":
            return cls(_file(described["path"], size), transport, path=described["path"])
        from _hiera_worker import cudart

        if transport == "cuda ipc":
            address = cudart.open_handle(described["handle"])
            return cls(device_bytes(address, size, device), transport, handle=described["handle"])
        data = device_bytes(cudart.malloc(size), size, device)
        return cls(data, transport, path=described["path"], mirror=_file(described["path"], size))

    def publish(self):
        """Make what this process wrote visible to the other one."""
        if self.transport == "cuda ipc":
            torch.cuda.current_stream().synchronize()
        elif self._mirror is not None:
            self._mirror.copy_(self.bytes)

    def fetch(self):
        """See what the other process published."""
        if self._mirror is not None:
            self.bytes.copy_(self._mirror)

    def view(self, offset, dtype, shape, stride):
        """A tensor over the slab's memory. `stride` counts elements."""
        kind = DTYPES[dtype] if isinstance(dtype, str) else dtype
        reach = extent_bytes(shape, stride, item_bytes(kind))
        flat = self.bytes[offset:offset + _round_up(max(reach, 1), 16)].view(kind)
        return torch.as_strided(flat, tuple(shape), tuple(stride), flat.storage_offset())

    def poison(self, start=0, stop=None):
        """Fill a range, whole 16-byte words, with the recognisable NaN."""
        self.bytes[start:stop].view(torch.int32).fill_(POISON_WORD)

    def checksum(self, start, stop):
        """64-bit, position-dependent sum of a range that starts at a whole word."""
        return self.checksums([(start, stop)])[0]

    def checksums(self, ranges):
        """The sums of several ranges, read back at once."""
        parts, counts, tails = [], [], []
        for start, stop in ranges:
            whole = start + (stop - start) // 8 * 8
            found = _parts(self.bytes[start:whole])
            parts += found
            counts.append(len(found))
            tails.append(bytes(self.bytes[whole:stop].tolist()).hex() if stop > whole else "")
        sums = iter(torch.stack(parts).tolist() if parts else ())
        return [_folded([next(sums) for _ in range(count)]) + tail for count, tail in zip(counts, tails)]


class Layout:
    """Where tensors lie in a slab: `place` hands out offsets, each with a guard band on both sides."""

    def __init__(self, start=0):
        self.next = start

    def place(self, spec, phase=0):
        """Byte offset for one tensor; `phase` bytes are added, to move pointers on purpose."""
        size = extent_bytes(spec["shape"], spec["stride"], item_bytes(DTYPES[spec["dtype"]]))
        offset = _round_up(self.next + GUARD_BYTES, ALIGN_BYTES) + phase
        self.next = _round_up(offset + size + GUARD_BYTES, ALIGN_BYTES)
        return offset, size


def device_bytes(address, size, device):
    """A uint8 tensor over device memory that torch does not own. Needs no numpy."""
    shape = (ctypes.c_int64 * 1)(size)
    tensor = _DLManagedTensor(
        _DLTensor(address, _DLDevice(2, device.index or 0), 1, _DLDataType(1, 8, 1), shape, None, 0), None, _no_deleter
    )
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    # torch keeps a pointer into these for as long as the tensor lives, which is the process's life.
    _kept.append((shape, tensor))
    return torch.utils.dlpack.from_dlpack(new_capsule(ctypes.addressof(tensor), b"dltensor", None))


def checksum(data):
    """64-bit, position-dependent checksum of a uint8 tensor whose length is a multiple of 8."""
    parts = _parts(data)
    return _folded(torch.stack(parts).tolist() if parts else [])


def _parts(data):
    """Weighted sums of the chunks of a block of whole words, on its device."""
    words = data.view(torch.int64)
    weights = _weights(data.device)
    return [(chunk * weights[:chunk.numel()]).sum() for chunk in words.split(CHUNK_WORDS) if chunk.numel()]


def _folded(parts):
    total = 0
    for part in parts:
        total = (total * 0x9E3779B97F4A7C15 + part) % (1 << 64)
    return f"{total:016x}"


def extent_bytes(shape, stride, item):
    """Bytes from a tensor's first to its last element, gaps included."""
    if any(n == 0 for n in shape):
        return 0
    return (sum((n - 1) * s for n, s in zip(shape, stride)) + 1) * item


def stored(tensor, stride):
    """What memory holds of a tensor of these strides: along a dimension that repeats (stride 0) its first part.

    Writing to all of it is refused by torch.
    """
    return tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)] if tensor.numel() else tensor


def item_bytes(kind):
    """Bytes of one element of a torch dtype."""
    return torch.empty((), dtype=kind).element_size()


_weight_cache = {}


def _weights(device):
    if device not in _weight_cache:
        generator = torch.Generator(device="cpu").manual_seed(20407)
        values = torch.randint(-(1 << 62), 1 << 62, (1 << 16,), generator=generator) * 2 + 1
        # Repeated with a growing odd factor: cheap to make on the device, and still different everywhere.
        factors = torch.arange(CHUNK_WORDS >> 16, dtype=torch.int64) * 2 + 1
        _weight_cache[device] = (factors.to(device)[:, None] * values.to(device)[None, :]).reshape(-1)
    return _weight_cache[device]


def _round_up(value, step):
    return (value + step - 1) // step * step


def _file(path, size):
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(size)
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


class _DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _DLDevice), ("ndim", ctypes.c_int32), ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]


_no_deleter = _Deleter(lambda _tensor: None)
