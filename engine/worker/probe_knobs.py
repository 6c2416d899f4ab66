"""Whole numbers in a file's text that set the sizes of inputs and weights."""

import ast

SIZE_FUNCTIONS = ("get_inputs", "get_inputs_variants", "get_init_inputs")
# Numbers with these names are axes or strides, unless they are too large for that (`dim = 4096` is a size).
RARELY_SIZES = frozenset({"dim", "axis", "dims", "stride", "padding", "dilation", "groups", "start_dim", "end_dim",
                          "kernel_size"})
NEVER_SIZES = frozenset({"seed", "low"})
LARGEST_AXIS = 32


class Knob:
    """One number: its value, its place in the text (characters), and a name for people."""

    def __init__(self, value, start, end, label):
        self.value, self.start, self.end, self.label = value, start, end, label


def find(text, target, function=None, deep=False, defaults=True):
    """All knobs of a file.

    Args:
        text: The file's text.
        target: Qualified name of the class.
        function: A further function that gives inputs.
        defaults: Also take the defaults of the constructor's parameters.
        deep: Also take the numbers inside the constructors of all classes.
    """
    tree = ast.parse(text)
    finder = _Finder(text)
    for node in _top_level(tree.body):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            finder.assigned(targets[0], node.value)
        elif isinstance(node, ast.FunctionDef) and node.name in (*SIZE_FUNCTIONS, function):
            finder.inside(node, node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    if defaults and node.name == target.split(".")[-1]:
                        finder.defaults(method)
                    if deep:
                        finder.inside(method, node.name)
                elif isinstance(method, ast.FunctionDef) and method.name in SIZE_FUNCTIONS:
                    finder.inside(method, method.name)
    return finder.knobs


class _Finder:
    def __init__(self, text):
        self.text = text
        self.lines = [0]
        for line in text.split("\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)
        self.rows = text.split("\n")
        self.knobs = []

    def assigned(self, target, value):
        label = ast.unparse(target)
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, item in zip(target.elts, value.elts):
                self.assigned(one, item)
        elif _number(value) is not None:
            if not (isinstance(target, ast.Name) and not _is_size(target.id.lower(), value)):
                self.add(value, label)
        elif isinstance(value, (ast.Tuple, ast.List)):
            for i, item in enumerate(value.elts):
                self.assigned(ast.Subscript(target, ast.Constant(i), ast.Load()), item)
        elif isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values):
                if key is not None and not (isinstance(key, ast.Constant) and not _is_size(key.value, item)):
                    self.assigned(ast.Subscript(target, key, ast.Load()), item)
        elif isinstance(value, ast.Call):
            for keyword in value.keywords:
                if keyword.arg and _number(keyword.value) is not None and _is_size(keyword.arg, keyword.value):
                    self.add(keyword.value, f"{label}.{keyword.arg}")

    def inside(self, node, label):
        """Numbers in a function's body, without indices, seeds and named arguments that are no sizes."""
        stack = list(node.body)
        while stack:
            part = stack.pop()
            if isinstance(part, ast.expr) and _number(part) is not None:
                self.add(part, f"{label} line {part.lineno}")
                continue
            if isinstance(part, ast.Subscript):
                stack.append(part.value)
                continue
            if isinstance(part, ast.keyword) and not _is_size(part.arg, part.value):
                continue
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and "seed" in part.func.attr:
                continue
            stack.extend(ast.iter_child_nodes(part))

    def defaults(self, method):
        positional = [*method.args.posonlyargs, *method.args.args]
        pairs = list(zip(reversed(positional), reversed(method.args.defaults)))
        pairs += [(a, d) for a, d in zip(method.args.kwonlyargs, method.args.kw_defaults) if d is not None]
        for argument, default in pairs:
            if _number(default) is not None and _is_size(argument.arg, default):
                self.add(default, argument.arg)

    def add(self, node, label):
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno, node.end_col_offset)
        if not any(k.start < end and start < k.end for k in self.knobs):
            self.knobs.append(Knob(_number(node), start, end, label))

    def _offset(self, line, column):
        # ast counts columns in UTF-8 bytes.
        return self.lines[line - 1] + len(self.rows[line - 1].encode()[:column].decode())


def _top_level(body):
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, []))


def _is_size(name, node):
    value = _number(node)
    return name not in NEVER_SIZES and not (name in RARELY_SIZES and value is not None and value <= LARGEST_AXIS)


def _number(node):
    """The value of an expression of whole numbers without names, or None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Pow)):
        left, right = _number(node.left), _number(node.right)
        if left is None or right is None:
            return None
        try:
            if isinstance(node.op, ast.Pow):
                return left**right if 0 <= right < 64 else None
            return {ast.Add: left.__add__, ast.Sub: left.__sub__, ast.Mult: left.__mul__,
                    ast.FloorDiv: left.__floordiv__}[type(node.op)](right)
        except ZeroDivisionError:
            return None
    return None
