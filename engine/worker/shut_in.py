"""A program of its own: `python shut_in.py FOLDER READABLE... -- COMMAND...` runs a compiler behind Landlock, seccomp.

For machines where bubblewrap does not work. FOLDER is the only place COMMAND may write to, the READABLE folders and
the system's are all it can read, and it has no network. Where the kernel refuses either rule, nothing is run.
"""

import ctypes
import importlib.util
import os
import sys

REFUSED = 125


def main(words):
    """Give up rights, then become the command."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location("lockdown", os.path.join(here, "lockdown.py"))
    lockdown = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lockdown)
    split = words.index("--")
    folder, readable, command = words[0], words[1:split], words[split + 1:]
    report = lockdown.shut_in([folder], readable)
    refused = {name: state for name, state in report.items() if state != "in force"}
    if refused:
        sys.stderr.write(f"shut_in: {refused}\n")
        return REFUSED
    os.chdir(folder)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"shut_in: {command[0]}: {error}\n")
    return REFUSED


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    sys.exit(main(sys.argv[1:]))
