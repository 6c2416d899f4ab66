"""What is installed: the user's interpreter and torch, nvcc, host compiler, NVIDIA's tools. Imports no torch."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contracts.errors import ConfigError, ToolError, WorkerTimeoutError
from engine import processes

PROBE_TIMEOUT_S = 20.0
# find_spec locates torch without running any of it; version.py is a handful of assignments.
_PROBE = """
import importlib.util, json, os, site, sys, sysconfig
spec = importlib.util.find_spec("torch")
folder = os.path.dirname(spec.origin) if spec and spec.origin else None
version = open(os.path.join(folder, "version.py")).read() if folder else ""
print(json.dumps({
    "executable": sys.executable, "version": sys.version.split()[0], "include": sysconfig.get_paths()["include"],
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"), "torch_dir": folder, "version_py": version,
    "paths": [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))],
}))
"""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The programs that build, run and profile candidates.

    Attributes:
        python: The user's interpreter.
        python_version: Such as `3.12.3`.
        python_include: Folder of Python.h.
        ext_suffix: Ending of extension modules, such as `.cpython-312-x86_64-linux-gnu.so`.
        site_packages: The interpreter's package folders.
        torch_version: Such as `2.11.0+cu130`; None where the interpreter has no torch.
        torch_dir: Folder of the torch package.
        torch_cuda: CUDA version torch was built with, such as `13.0`; None for a CPU build.
        cxx11_abi: torch's value of _GLIBCXX_USE_CXX11_ABI.
        gxx: Host compiler, None where there is none.
        gxx_version: Such as `12.2.0`.
        nvcc: Path of nvcc, None where there is none.
        nvcc_version: Such as `13.0`.
        nvcc_problem: Why nvcc is missing or does not fit torch; empty where all is well.
        cuda_home: The toolkit's folder.
        ncu: Nsight Compute's command line program.
        compute_sanitizer: compute-sanitizer.
    """

    python: str
    python_version: str
    python_include: str
    ext_suffix: str
    site_packages: tuple[str, ...] = ()
    torch_version: str | None = None
    torch_dir: str | None = None
    torch_cuda: str | None = None
    cxx11_abi: bool = True
    gxx: str | None = None
    gxx_version: str = ""
    nvcc: str | None = None
    nvcc_version: str = ""
    nvcc_problem: str = ""
    cuda_home: str | None = None
    ncu: str | None = None
    compute_sanitizer: str | None = None

    @property
    def torch_include(self) -> Path:
        """Torch's include folder."""
        return Path(self._torch()) / "include"

    @property
    def torch_lib(self) -> Path:
        """Folder of torch's shared libraries."""
        return Path(self._torch()) / "lib"

    @property
    def torch_flags(self) -> tuple[str, ...]:
        """Include paths and definitions for code that uses torch's real headers."""
        return (
            f"-I{self.torch_include}", f"-I{self.torch_include / 'torch' / 'csrc' / 'api' / 'include'}",
            f"-I{self.python_include}", f"-D_GLIBCXX_USE_CXX11_ABI={int(self.cxx11_abi)}",
        )

    @property
    def torch_release(self) -> tuple[int, int]:
        """Torch's version as (major, minor)."""
        major, minor = (self.torch_version or "0.0").split(".")[:2]
        return int(major), int(minor)

    @cached_property
    def key(self) -> str:
        """Text that changes whenever a build's result might."""
        return "|".join(
            [self.torch_version or "", self.torch_dir or "", self.python_version, self.ext_suffix,
             self.nvcc_version, self.nvcc or "", self.gxx_version, str(self.cxx11_abi)]
        )

    def require_compiler(self) -> str:
        """The host compiler.

        Raises:
            ToolError: There is none.
        """
        if self.gxx is None:
            raise ToolError("no C++ compiler was found", hint="install g++ (Debian, Ubuntu: apt install g++)")
        return self.gxx

    def require_nvcc(self) -> str:
        """An nvcc that fits torch.

        Raises:
            ToolError: There is none, or it does not fit.
        """
        if self.nvcc is None or self.nvcc_problem:
            wanted = (self.torch_cuda or "13.0").split(".")[0]
            raise ToolError(
                self.nvcc_problem or "nvcc was not found",
                hint=f"install CUDA toolkit {wanted}.x and set CUDA_HOME to it, or pip install nvidia-cuda-nvcc",
            )
        return self.nvcc

    def _torch(self) -> str:
        if self.torch_dir is None:
            raise ToolError(
                f"{self.python} has no torch", hint="choose the interpreter that has your torch, or pip install torch"
            )
        return self.torch_dir


def find_python(near: Path, setting: str | None = None) -> tuple[str, str]:
    """The user's interpreter that has torch, and why it was taken.

    Args:
        near: The user's file or folder; `.venv` and `venv` are looked for there and above.
        setting: What the user configured, which then is the only choice.

    Raises:
        ConfigError: `setting` cannot be run or has no torch.
        ToolError: No interpreter with torch was found; the message lists those tried.
    """
    if setting:
        path = shutil.which(setting)
        if path is None:
            raise ConfigError(f"the configured interpreter {setting} is not there", hint="correct the setting")
        if not _has_torch(path):
            raise ConfigError(
                f"the configured interpreter {setting} has no torch",
                hint=f"{setting} -m pip install torch, or configure another interpreter",
            )
        return path, "configured"
    tried: list[str] = []
    for path, why in _pythons(near):
        if path in tried:
            continue
        tried.append(path)
        if _has_torch(path):
            return path, why
    raise ToolError(
        "no interpreter with torch was found; tried " + ", ".join(tried),
        hint="activate the environment that has torch, name its Python by --python, or `pip install torch`",
    )


def _pythons(near: Path) -> Iterator[tuple[str, str]]:
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            path = Path(os.environ[variable]) / "bin" / "python"
            if path.exists():
                yield str(path), f"${variable}"
    start = near.resolve()
    for folder in (start, *start.parents):
        for name in (".venv", "venv"):
            path = folder / name / "bin" / "python"
            if path.exists():
                yield str(path), f"{folder / name}"
    for name in ("python3", "python"):
        found = shutil.which(name)
        if found:
            yield found, f"{name} on PATH"
    yield sys.executable, "the interpreter hiera runs in"


def _has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        found = subprocess.run(
            [python, "-c", code], cwd="/", env=processes.child_environment(), timeout=PROBE_TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


_found: dict[str, Toolchain] = {}


async def find_toolchain(python: str) -> Toolchain:
    """Everything that builds and runs candidates for `python`. Found once for each interpreter.

    Raises:
        ToolError: `python` cannot be run.
    """
    if python not in _found:
        _found[python] = await _find(python)
    return _found[python]


async def _find(python: str) -> Toolchain:
    facts = await _probe(python)
    torch_cuda = None
    cxx11_abi = True
    version = re.search(r"__version__ = '([^']+)'", facts["version_py"])
    if facts["torch_dir"]:
        cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", facts["version_py"], re.M)
        torch_cuda = cuda[1] if cuda else None
        cxx11_abi = await asyncio.to_thread(_has_cxx11_abi, Path(facts["torch_dir"]))
    site_packages = tuple(facts["paths"])
    nvcc, nvcc_version, problem = await _find_nvcc(site_packages, torch_cuda)
    cuda_home = str(Path(nvcc).parent.parent) if nvcc else None
    gxx, gxx_version = await _find_gxx(cuda_home)
    return Toolchain(
        python=facts["executable"], python_version=facts["version"], python_include=facts["include"],
        ext_suffix=facts["suffix"], site_packages=site_packages, torch_version=version[1] if version else None,
        torch_dir=facts["torch_dir"], torch_cuda=torch_cuda, cxx11_abi=cxx11_abi, gxx=gxx, gxx_version=gxx_version,
        nvcc=nvcc, nvcc_version=nvcc_version, nvcc_problem=problem, cuda_home=cuda_home,
        ncu=_find_tool("ncu", cuda_home, "nsight-compute*/ncu", "../nsight-compute/*/ncu"),
        compute_sanitizer=_find_tool("compute-sanitizer", cuda_home, "compute-sanitizer/compute-sanitizer"),
    )


async def _probe(python: str) -> dict[str, object]:
    try:
        done = await processes.run([python, "-c", _PROBE], timeout_s=PROBE_TIMEOUT_S, cwd="/")
    except (OSError, WorkerTimeoutError) as error:
        raise ToolError(f"the interpreter {python} cannot be run: {error}", hint="choose another one") from None
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise ToolError(f"the interpreter {python} does not work: {said}", hint="choose another one") from None


def _has_cxx11_abi(torch_dir: Path) -> bool:
    """Torch's C++ ABI, read off a symbol of its smallest library, since asking torch would mean importing it."""
    try:
        names = (torch_dir / "lib" / "libc10.so").read_bytes()
    except OSError:
        return True
    constructors = re.findall(rb"N3c105ErrorC1E\w+", names)
    return not constructors or any(b"cxx1112basic_string" in name for name in constructors)


def _nvcc_paths(site_packages: Iterable[str]) -> Iterator[Path]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable]) / "bin" / "nvcc"
    yield Path("/usr/local/cuda/bin/nvcc")
    found = shutil.which("nvcc")
    if found:
        yield Path(found).resolve()
    yield from sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"), reverse=True)
    for folder in dict.fromkeys([*site_packages, *(p for p in sys.path if p.endswith("site-packages"))]):
        yield from sorted(Path(folder).glob("nvidia/*/bin/nvcc"), reverse=True)


async def _find_nvcc(site_packages: Iterable[str], torch_cuda: str | None) -> tuple[str | None, str, str]:
    """(path, version, problem) of the first nvcc that fits torch, else of the first that works."""
    first: tuple[str, str] | None = None
    for path in dict.fromkeys(_nvcc_paths(site_packages)):
        if not os.access(path, os.X_OK):
            continue
        version = await _version([str(path), "--version"], r"release (\d+\.\d+)")
        if not version:
            continue
        if torch_cuda is None or version.split(".")[0] == torch_cuda.split(".")[0]:
            return str(path), version, ""
        first = first or (str(path), version)
    if first is None:
        return None, "", "nvcc was not found in CUDA_HOME, /usr/local/cuda, PATH or pip packages"
    return *first, f"nvcc {first[1]} does not fit torch, which was built with CUDA {torch_cuda}"


async def _find_gxx(cuda_home: str | None) -> tuple[str | None, str]:
    """The first g++ that nvcc accepts, else the first that works."""
    limit = _newest_gcc(cuda_home)
    first: tuple[str | None, str] = (None, "")
    for name in (os.environ.get("CXX", ""), "g++", *(f"g++-{n}" for n in range(15, 9, -1)), "c++"):
        path = shutil.which(name) if name else None
        version = await _version([path, "-dumpfullversion"], r"^(\d+(?:\.\d+)*)") if path else ""
        if not version:
            continue
        if int(version.split(".")[0]) <= limit:
            return path, version
        first = first if first[0] else (path, version)
    return first


def _newest_gcc(cuda_home: str | None) -> int:
    """The newest gcc that this toolkit takes, as its own header says."""
    if cuda_home:
        for header in Path(cuda_home).glob("**/include/crt/host_config.h"):
            match = re.search(r"__GNUC__ > (\d+)", header.read_text(errors="replace"))
            if match:
                return int(match[1])
    return 99


async def _version(command: list[str], pattern: str) -> str:
    try:
        done = await processes.run(command, timeout_s=PROBE_TIMEOUT_S)
    except (OSError, WorkerTimeoutError):
        return ""
    match = re.search(pattern, done.stdout, re.M)
    return match[1] if match and done.status == 0 else ""


def _find_tool(name: str, cuda_home: str | None, *patterns: str) -> str | None:
    """An NVIDIA tool: beside nvcc, on PATH, or where its own installer puts it."""
    folders = [Path(cuda_home)] if cuda_home else []
    for home in folders:
        for path in (home / "bin" / name, *(p for pattern in patterns for p in sorted(home.glob(pattern)))):
            if os.access(path, os.X_OK) and path.is_file():
                return str(path)
    found = shutil.which(name)
    if found:
        return found
    for path in sorted(Path("/opt/nvidia").glob(f"*/*/{name}"), reverse=True):
        if os.access(path, os.X_OK):
            return str(path)
    return None


def facts(toolchain: Toolchain) -> Mapping[str, str | None]:
    """One line a tool, for reports: name to version and path, None where it is missing."""
    return {
        "python": f"{toolchain.python_version} ({toolchain.python})",
        "torch": f"{toolchain.torch_version} (CUDA {toolchain.torch_cuda or 'none'})" if toolchain.torch_dir else None,
        "nvcc": f"{toolchain.nvcc_version} ({toolchain.nvcc})" if toolchain.nvcc else None,
        "g++": f"{toolchain.gxx_version} ({toolchain.gxx})" if toolchain.gxx else None,
        "ncu": toolchain.ncu,
        "compute-sanitizer": toolchain.compute_sanitizer,
    }
