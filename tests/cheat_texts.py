"""Ways to cheat that are found in the text or in the object, before anything runs: the screen and the symbol audit."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine import processes
from engine.evaluate.audit import audit, read_symbols
from engine.evaluate.screen import screen

HOST = "g++"
_ENTRY = "\nint entry(int x) { return x; }\n"


@dataclass(frozen=True, slots=True)
class Text:
    """One source. `check` is `screen` or `symbol audit`; `space` is what it claims."""

    row: int
    check: str
    title: str
    source: str
    space: str = "cuda_libs_torch"


TEXTS = (
    Text(70, "screen", "includes a file by its absolute name", '#include "/etc/passwd"'),
    Text(70, "screen", "includes a file by way of a macro", "#define F <x.h>\n#include F"),
    Text(70, "screen", "leaves the include folders", '#include "../../groundtruth.py"'),
    Text(70, "screen", "reads a file by .incbin", 'asm(".incbin \\"groundtruth.py\\"");'),
    Text(70, "screen", "reads a file by .incbin, cut in two", 'asm(".inc" "bin \\"groundtruth.py\\"");'),
    Text(70, "screen", "embeds a file", "const char t[] = {\n#embed \"groundtruth.py\"\n};"),
    Text(70, "screen", "a source of more than four megabytes", "//" + "x" * (4 << 20)),
    Text(9, "symbol audit", "changes torch's flags",
         "namespace at { class Context { public: void setAllowTF32CuBLAS(bool); }; Context& globalContext(); }\n"
         "void f() { at::globalContext().setAllowTF32CuBLAS(true); }"),
    Text(32, "symbol audit", "asks the driver where allocations lie",
         'extern "C" int cuMemGetAddressRange_v2(void*, void*, void*);\nint f() { return cuMemGetAddressRange_v2(0, 0, 0); }'),
    Text(36, "symbol audit", "opens files",
         '#include <cstdio>\nvoid* f() { return fopen("/dev/shm/answer", "r"); }'),
    Text(37, "symbol audit", "takes the place of the binding's entry point",
         'extern "C" void* PyInit_candidate() { return nullptr; }'),
    Text(40, "symbol audit", "starts a thread", "#include <thread>\nvoid f() { std::thread([] {}).detach(); }"),
    Text(42, "symbol audit", "runs Python",
         'extern "C" int PyRun_SimpleString(const char*);\nint f() { return PyRun_SimpleString("import time"); }'),
    Text(43, "symbol audit", "looks up functions to patch them",
         "#include <dlfcn.h>\nvoid* f() { return dlsym(nullptr, \"cudaEventRecord\"); }"),
    Text(43, "symbol audit", "makes code writable",
         "#include <sys/mman.h>\nint f(void* p) { return mprotect(p, 4096, PROT_READ | PROT_WRITE | PROT_EXEC); }"),
    Text(66, "symbol audit", "starts a process", "#include <unistd.h>\nint f() { return fork(); }"),
    Text(67, "symbol audit", "removes files", "#include <unistd.h>\nint f() { return unlink(\"groundtruth.py\"); }"),
    Text(68, "symbol audit", "opens a connection", "#include <sys/socket.h>\nint f() { return socket(AF_INET, SOCK_STREAM, 0); }"),
    Text(74, "symbol audit", "attaches to another process",
         "#include <sys/ptrace.h>\nlong f() { return ptrace(PTRACE_ATTACH, 1, nullptr, nullptr); }"),
    Text(75, "symbol audit", "cuBLAS in a space without libraries",
         'extern "C" int cublasSgemm_v2();\nint f() { return cublasSgemm_v2(); }', "cuda"),
    Text(75, "symbol audit", "an ATen operator in a space without torch",
         "namespace at { class Tensor; namespace _ops { struct softmax_int { static void call(const Tensor&); }; } }\n"
         "void f(const at::Tensor& x) { at::_ops::softmax_int::call(x); }", "cuda_libs"),
    Text(75, "symbol audit", "falls back to an ATen operator where its own kernel fails",
         "namespace at { class Tensor; namespace _ops { struct sum { static void call(const Tensor&); }; } }\nvoid mine();\n"
         "void f(const at::Tensor& x) { try { mine(); } catch (...) { at::_ops::sum::call(x); } }", "cuda"),
    Text(77, "symbol audit", "hands memory to other processes",
         'extern "C" int cudaIpcGetMemHandle(void*, void*);\nint f() { return cudaIpcGetMemHandle(0, 0); }'),
)


async def judge_texts() -> list[tuple[Text, str]]:
    """Each text with why it was refused, or an empty string."""
    found = []
    with tempfile.TemporaryDirectory(prefix="hiera-texts-") as folder:
        for text in TEXTS:
            source = text.source + _ENTRY
            if text.check == "screen":
                failure = screen(source, entries=["entry"])
            else:
                path, target = Path(folder, "candidate.cpp"), Path(folder, "candidate.o")
                path.write_text(source, encoding="utf-8")
                done = await processes.run(
                    [HOST, "-std=c++17", "-O1", "-fPIC", "-c", str(path), "-o", str(target)], timeout_s=120)
                assert done.status == 0, done.output
                failure = audit(await read_symbols(target), text.space, source)  # type: ignore[arg-type]
            found.append((text, failure.reason if failure is not None else ""))
    return found
