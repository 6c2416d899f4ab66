"""What a contract's graph and its examples say about how to judge it."""

from _hiera_worker import judge_inputs
from _hiera_worker.judge_state import State


def flags_matter(contract):
    """Can torch's precision flags change this contract's result? True where nothing is known."""
    graph = contract["variants"][0].get("graph")
    if graph is None:
        return True
    words = ("conv", "mm", "linear", "matmul", "lstm", "gru", "rnn", "attention", "einsum", "bilinear", "dot", "mv")
    return any(word in node["op"] for node in graph["nodes"] for word in words)


def may_multiply(contract):
    """Could this be a product of matrices, whose fast forms spread NaN and infinity over a tile?"""
    wide = [a for a in contract["arguments"] if a.get("tensor") and a["role"] != "buffer"
            and len(a["tensor"]["shape"]) > 1 and "int" not in a["tensor"]["dtype"]]
    return len(wide) > 1


def profiles():
    """What each tensor argument's example looks like, by name."""
    state = State
    found = {}
    inputs = [a for a in state.tensors if a["role"] == "input"]
    for argument, leaf in zip(inputs, state.reference.leaves):
        found[argument["name"]] = judge_inputs.profile(leaf, argument.get("low"), argument.get("high"))
    for argument in state.tensors:
        name = argument["name"]
        if name in found:
            continue
        if argument["role"] in ("parameter", "buffer") and state.reference.model is not None:
            live = state.reference.state(state.reference.model, argument["path"])
            found[name] = judge_inputs.profile(live)
        else:
            kind = argument["tensor"]["dtype"]
            integer = kind.startswith(("int", "uint"))
            found[name] = judge_inputs.Profile(
                "bool" if kind == "bool" else "integer" if integer else "normal",
                low=argument.get("low") or 0, high=argument.get("high") or 0, mean=0.5 if kind == "bool" else 0.0)
    return found
