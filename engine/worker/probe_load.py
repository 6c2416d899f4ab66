"""Importing the user's file, and finding the class or function in it."""

import ast
import importlib
import importlib.util
import inspect
import os
import sys

import torch
from _hiera_worker.wire import Refusal


class Place:
    """Where the user's code is, for messages."""

    def __init__(self, path, root, line=None):
        self.path, self.root, self.line = path, root, line
        self.entries, self.script_entries = [], []

    def of(self, error):
        """File and line of an exception in the user's code."""
        file, line = user_place(error, self.path, self.root)
        return file, line if line is not None else self.line


def load(path, root, role="the file"):
    """Import the file at `path` and return its module.

    Its folder and the project's root become importable, as when the user runs the file. A file in a
    package is imported under its dotted name, so that its relative imports work.
    """
    entries, parts = entries_of(path, root), _dotted_parts(path)
    for entry in reversed(entries):
        if entry in sys.path:
            sys.path.remove(entry)
        sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        if len(parts) > 1:
            if parts[-1] == "__init__":
                parts.pop()
            return importlib.import_module(".".join(parts))
        name = "_user_" + parts[0]
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    except SyntaxError as error:
        file = error.filename or path
        raise Refusal(f"syntax error: {error.msg}", "correct the syntax", file, error.lineno) from None
    except ModuleNotFoundError as error:
        file, line = user_place(error, path, root)
        raise Refusal(
            f"cannot import {role}: no module named {error.name!r}",
            f"install it for {sys.executable}, or choose the interpreter that has it", file, line,
        ) from None
    except SystemExit as error:
        file, line = user_place(error, path, root)
        raise Refusal(
            f"importing {role} ends the interpreter (SystemExit: {error.code})",
            'put script code under `if __name__ == "__main__":`', file, line,
        ) from None
    except BaseException as error:
        file, line = user_place(error, path, root)
        raise Refusal(
            f"importing {role} raises {said(error)}", "correct the error, or guard the code that runs on import",
            file, line,
        ) from None
    finally:
        # A default device set on import would send every tensor to a GPU that the probe does not use.
        if str(torch.get_default_device()) != "cpu":
            torch.set_default_device(None)


def entries_of(path, root):
    """Folders that must be importable for the file: its own, the one its package lies in, the project's root."""
    folder = os.path.dirname(path)
    package_root = folder
    for _ in _dotted_parts(path)[1:]:
        package_root = os.path.dirname(package_root)
    return list(dict.fromkeys([folder, package_root, root] if package_root == folder else [package_root, root]))


def _dotted_parts(path):
    """`["package", "module"]`; one part for a file outside of packages."""
    parts = [os.path.splitext(os.path.basename(path))[0]]
    folder = os.path.dirname(path)
    while os.path.exists(os.path.join(folder, "__init__.py")) and os.path.dirname(folder) != folder:
        parts.insert(0, os.path.basename(folder))
        folder = os.path.dirname(folder)
    return parts


def find(module, name, path):
    """The class or function called `name` (dotted for nested ones)."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if inspect.isclass(found) and issubclass(found, torch.nn.Module):
        return found
    if found is not None and not inspect.isclass(found) and callable(found) and not isinstance(found, torch.nn.Module):
        return found
    names = ", ".join(candidates(module)) or "none"
    if found is None:
        raise Refusal(f"there is no class or function {name!r} in this file", f"name one of: {names}", path, 1)
    if isinstance(found, torch.nn.Module):
        raise Refusal(
            f"{name!r} is a module that was already built", f"name its class {type(found).__name__!r}", path,
            line_of(type(found)),
        )
    raise Refusal(
        f"{name!r} is neither a class derived from torch.nn.Module nor a function", f"name one of: {names}", path,
        line_of(found),
    )


def candidates(module):
    """Names of the module classes that the file itself defines."""
    return [
        key for key, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__
    ]


def line_of(thing):
    """First line of a class or function, or None."""
    try:
        return inspect.getsourcelines(thing)[1]
    except (OSError, TypeError):
        return None


def said(error):
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__


def user_place(error, path, root):
    """File and line of the innermost frame in the user's file, else in the user's project, else the file alone."""
    own, project = None, None
    trace = error.__traceback__
    while trace is not None:
        file = os.path.abspath(trace.tb_frame.f_code.co_filename)
        if file == path:
            own = (file, trace.tb_lineno)
        elif is_local(file, root):
            project = (file, trace.tb_lineno)
        trace = trace.tb_next
    return own or project or (path, None)


def is_local(file, root):
    """True for a file of the user's project, false for installed packages and our own."""
    return (
        file.startswith(root + os.sep)
        and not any(part in file.split(os.sep) for part in ("site-packages", "dist-packages"))
        and not file.startswith(os.path.dirname(os.path.abspath(__file__)) + os.sep)
        and not file.startswith(sys.prefix + os.sep)
    )


def local_imports(module, path, root):
    """Project files that the user's file needs, and why the file cannot stand alone (empty when it can)."""
    with open(path, encoding="utf-8-sig") as stream:
        text = stream.read()
    files, reasons = [], []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.ImportFrom):
            if node.level:
                reasons.append(f"relative import in line {node.lineno}")
                continue
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Name) and node.id == "__file__":
            reasons.append(f"__file__ in line {node.lineno}")
        for name in names:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and is_local(os.path.abspath(file), root):
                files.append(os.path.abspath(file))
                reasons.append(f"import of {name!r} from the project in line {node.lineno}")
    if module.__package__:
        reasons.append("the file is part of a package")
    return sorted(set(files)), list(dict.fromkeys(reasons))
