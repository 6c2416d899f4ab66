"""Locks a candidate process down before foreign code is loaded: plain system calls, no packages.

Each measure is tried on its own and reported: a kernel that lacks one must not stop the work, but
the verdict names what really was in force. Contains careless and crafty kernels; not an attack on
the NVIDIA driver itself.
"""

import ctypes
import glob
import os
import platform
import resource
import signal
import struct
import sys

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC = 1, 1
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, EACCES, ENOSYS = 1, 13, 38
CLONE_THREAD, AF_UNIX = 0x00010000, 1
# Numbers of system calls: (x86_64, aarch64). 0 where the machine has none.
DENIED = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, 0), "vfork": (58, 0), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "bpf": (321, 280),
    "perf_event_open": (298, 241), "mount": (165, 40), "umount2": (166, 39), "setns": (308, 268),
    "unshare": (272, 97), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "open_by_handle_at": (304, 265),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "pivot_root": (155, 41), "chroot": (161, 51),
    "setsid": (112, 157),
    # What outlives a process, for the next candidate to find.
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
}
SPECIAL = {"socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129)}
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def lock(writable, readable):
    """Give up everything a kernel does not need.

    Args:
        writable: Folders that stay writable.
        readable: Further folders that stay readable (the extension's, CUDA's).

    Returns:
        Measure to "in force" or why it is not.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    report = {"rlimits": _try(_limits)}
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    report["no new privileges"] = _try(lambda: _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)))
    report["landlock"] = _try(lambda: _landlock(libc, writable, readable))
    report["seccomp"] = _try(lambda: _seccomp(libc))
    return report


def shut_in(writable, readable):
    """What a compiler can live with: it still starts programs. Returns a report like `lock`."""
    libc = ctypes.CDLL(None, use_errno=True)
    return {
        "no new privileges": _try(lambda: _checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))),
        "landlock": _try(lambda: _landlock(libc, writable, readable)),
        "seccomp": _try(lambda: _no_network(libc)),
    }


def _try(measure):
    try:
        measure()
    except (OSError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return "in force"


def _checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _limits():
    for kind, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 1 << 30), (resource.RLIMIT_CPU, 600)):
        _, hard = resource.getrlimit(kind)
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (limit, limit))


def _seccomp(libc):
    column, _ = MACHINES[platform.machine()]
    code = []
    for numbers in DENIED.values():
        if numbers[column]:
            code += [_op(0x15, 0, 1, numbers[column]), _op(0x06, 0, 0, ERRNO | EPERM)]
    code += [_op(0x15, 0, 1, SPECIAL["clone3"][column]), _op(0x06, 0, 0, ERRNO | ENOSYS)]
    code += _if_first_argument("socket", _op(0x15, 0, 1, AF_UNIX), EACCES)
    code += _if_first_argument("clone", _op(0x45, 0, 1, CLONE_THREAD), EPERM)
    code += _if_first_argument("kill", _op(0x15, 0, 1, os.getpid()), EPERM)
    _install(libc, code)


def _no_network(libc):
    _install(libc, _if_first_argument("socket", _op(0x15, 0, 1, AF_UNIX), EACCES))


def _if_first_argument(call, test, refusal):
    """Allow `call` where `test` of its first argument holds."""
    column, _ = MACHINES[platform.machine()]
    return [_op(0x15, 0, 4, SPECIAL[call][column]), _op(0x20, 0, 0, 16), test, _op(0x06, 0, 0, ALLOW),
            _op(0x06, 0, 0, ERRNO | refusal)]


def _install(libc, rules):
    """A filter of `rules` for every thread; what they do not name is allowed."""
    column, machine = MACHINES[platform.machine()]
    code = [_op(0x20, 0, 0, 4), _op(0x15, 1, 0, machine), _op(0x06, 0, 0, ERRNO | EPERM), _op(0x20, 0, 0, 0)]
    if column == 0:  # The x32 numbers would go around the list.
        code += [_op(0x35, 0, 1, 0x40000000), _op(0x06, 0, 0, ERRNO | EPERM)]
    code += [*rules, _op(0x06, 0, 0, ALLOW)]
    text = ctypes.create_string_buffer(b"".join(code))
    # struct sock_fprog: a 16-bit length, padding, a pointer.
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(text)))
    seccomp = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    _checked(libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(program)))


def _op(code, if_true, if_false, value):
    return struct.pack("=HBBI", code, if_true, if_false, value)


EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE = 1 << 14
FILE_ACCESS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
_kept = []


def _landlock(libc, writable, readable):
    abi = _checked(libc.syscall(444, None, ctypes.c_size_t(0), 1))
    handled = (1 << 13) - 1 | (1 << 13 if abi >= 2 else 0) | (TRUNCATE if abi >= 3 else 0)
    attributes = struct.pack("=Q", handled)
    rules = _checked(libc.syscall(444, attributes, ctypes.c_size_t(8), 0))
    look = EXECUTE | READ_FILE | READ_DIR
    roots = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/ssl", "/etc/localtime", "/sys", "/opt",
             "/run/nvidia-persistenced", sys.prefix, sys.base_prefix]
    roots += [p for p in sys.path if p and os.path.isdir(p)] + list(readable)
    try:
        for path in roots:
            _allow(libc, rules, path, look & handled)
        _allow(libc, rules, "/proc", look & handled)
        # CUDA names its threads there; the rest of /proc would let root change the machine. Kept open: the rule holds
        # for as long as the kernel keeps this entry of /proc, and no longer.
        _kept.append(os.open("/proc/self", os.O_PATH | os.O_CLOEXEC))
        _rule(libc, rules, _kept[-1], (look | WRITE_FILE) & handled)
        for path in [*glob.glob("/dev/nvidia*"), "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]:
            _allow(libc, rules, path, (look | WRITE_FILE) & handled)
        for path in writable:
            _allow(libc, rules, path, handled)
        _checked(libc.syscall(446, rules, 0))
    finally:
        os.close(rules)


def _allow(libc, rules, path, access):
    if not os.path.exists(path):
        return
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            access &= FILE_ACCESS
        _rule(libc, rules, descriptor, access)
    finally:
        os.close(descriptor)


def _rule(libc, rules, descriptor, access):
    _checked(libc.syscall(445, rules, 1, struct.pack("=Qi", access, descriptor), 0))
