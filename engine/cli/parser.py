"""The command line's grammar. Each subcommand's function is imported when it is run, not before."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable

from contracts.contract import SPACES
from engine.cli import bench_flags
from engine.llm import bridge as bridge_flags
from engine.settings import AGENTS, PRECISIONS

Command = Callable[[argparse.Namespace], int]


def build() -> argparse.ArgumentParser:
    """The parser of `hiera`."""
    parser = argparse.ArgumentParser(prog="hiera", description="Find a proven faster kernel for a PyTorch module "
                                                               "or a .cu file.")
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _optimize(commands)
    _contract(commands)
    _evaluate(commands)
    _bench(commands)
    _history(commands)
    _tools(commands)
    return parser


def _optimize(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "optimize", "optimize:optimize",
                   "optimise a module, function, .cu file or contract folder")
    _target(add)
    add.add_argument("--preset", choices=("quick", "normal", "deep"), help="size of the search (default normal)")
    _limits(add)
    add.add_argument("--space", choices=SPACES, help="widest implementation space allowed")
    add.add_argument("--agent", choices=AGENTS, help="who plans and writes (default expert)")
    _model(add)
    _judging(add)
    add.add_argument("--out", metavar="DIR", help="write the contract folder with the best candidate there")
    add.add_argument("--json", metavar="FILE", help="write the whole record as JSON; - for stdout")
    add.add_argument("--no-confirm", dest="confirm", action="store_const", const=False,
                     help="do not rebuild the winner with PyTorch's own headers")
    add.add_argument("--no-profile", dest="profile", action="store_const", const=False, help="take no counters")
    add.add_argument("--planning", action="append", metavar="DIR", help="further planning data (notes, rubric rows)")
    add.add_argument("--fresh", action="store_true", help="do not answer from an earlier run of the same request")
    add = _command(commands, "resume", "optimize:resume", "go on with a run that was interrupted")
    add.add_argument("run", metavar="RUN", help="a run's name, its unique beginning, or `last`")
    _limits(add)
    add.add_argument("--out", metavar="DIR", help="write the contract folder with the best candidate there")
    add.add_argument("--json", metavar="FILE", help="write the whole record as JSON; - for stdout")


def _contract(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "contract", "judge:contract", "write the contract folder with a first candidate")
    _target(add)
    add.add_argument("--out", metavar="DIR", required=True, help="the folder to write")
    add.add_argument("--space", choices=SPACES, help="widest implementation space of the first candidate")
    _judging(add)


def _evaluate(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "evaluate", "judge:evaluate", "judge candidates against a contract folder")
    add.add_argument("file", metavar="DIR", help="contract folder")
    _candidates(add)
    add = _command(commands, "profile", "judge:profile", "counters, bound and hottest source lines of candidates")
    add.add_argument("file", metavar="DIR", help="contract folder")
    _candidates(add)


def _candidates(add: argparse.ArgumentParser) -> None:
    add.add_argument("--candidate", action="append", metavar="FILE",
                     help="a cuda_source.cu; may be given several times (default: the folder's)")
    add.add_argument("--space", choices=SPACES, help="what candidates may use (default cuda_libs_torch)")
    _judging(add)
    add.add_argument("--json", metavar="FILE", help="write the evidence as JSON; - for stdout")


def _bench(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "bench", "bench:bench", "optimise tasks in KernelBench's format and report fast_p")
    bench_flags.add_arguments(add, positive=_positive, seconds=_seconds)
    add.add_argument("--preset", choices=("quick", "normal", "deep"), help="size of the search (default normal)")
    add.add_argument("--space", choices=SPACES, help="widest implementation space allowed")
    add.add_argument("--agent", choices=AGENTS, help="who plans and writes (default expert)")
    _model(add)
    _judging(add)


def _history(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "runs", "history:runs", "list earlier runs")
    add.add_argument("--limit", type=_positive, default=20, metavar="N", help="newest N (default 20)")
    add = _command(commands, "show", "history:show", "all evidence of a run")
    add.add_argument("run", metavar="RUN", nargs="?", default="last", help="a run's name or beginning (default: last)")
    add.add_argument("--json", metavar="FILE", help="write it as JSON; - for stdout")
    add = _command(commands, "report", "history:report_page", "a run as one HTML page")
    add.add_argument("run", metavar="RUN", nargs="?", default="last", help="a run's name or beginning (default: last)")
    add.add_argument("--html", metavar="FILE", required=True, help="the page to write")


def _tools(commands: argparse._SubParsersAction) -> None:
    add = _command(commands, "doctor", "tools:doctor",
                   "what of GPU, compilers, torch and model works, and what mends it")
    add.add_argument("--python", metavar="FILE", help="the interpreter that has your torch")
    add.add_argument("--device", help="auto, cuda:N or none")
    add.add_argument("--json", metavar="FILE", help="write it as JSON; - for stdout")
    add = _command(commands, "llm-check", "model:check", "ask the language model one question and say what it can do")
    _endpoint(add)
    add.add_argument("--json", metavar="FILE", help="write it as JSON; - for stdout")
    add = _command(commands, "llm-bridge", "model:bridge",
                   "serve an endpoint whose questions and answers are files, so that a person can play the model")
    bridge_flags.add_arguments(add)


def _target(add: argparse.ArgumentParser) -> None:
    add.add_argument("file", metavar="FILE[::NAME]", help="a .py file and class or function, a .cu file, or a "
                                                          "contract folder")
    add.add_argument("--inputs", metavar="FILE", help="a Python file whose get_inputs() gives the example inputs")


def _limits(add: argparse.ArgumentParser) -> None:
    add.add_argument("--budget", type=_positive, metavar="N", help="candidates at most")
    add.add_argument("--rounds", type=_positive, metavar="R", help="rounds at most")
    add.add_argument("--seconds", type=_seconds, metavar="S",
                     help="seconds to search, over all sittings of a run; then the best is confirmed, and where "
                          "nothing is verified yet, what is being judged may end")
    add.add_argument("--tokens", type=_positive, metavar="N", help="limit on a language model's tokens")


def _endpoint(add: argparse.ArgumentParser) -> None:
    add.add_argument("--model", dest="llm_name", metavar="NAME", help="language model (default HIERA_MODEL)")
    add.add_argument("--base-url", dest="llm_base_url", metavar="URL",
                     help="its OpenAI-compatible address (default OPENAI_BASE_URL, else OpenAI's)")
    add.add_argument("--key-variable", dest="llm_key_variable", metavar="NAME",
                     help="environment variable that holds the key")


def _model(add: argparse.ArgumentParser) -> None:
    """Flags that only matter with --agent llm."""
    group = add.add_argument_group("language model, with --agent llm")
    _endpoint(group)  # type: ignore[arg-type]
    group.add_argument("--max-tokens", dest="llm_answer_tokens", type=_positive, metavar="N",
                       help="longest answer (default 8192)")
    group.add_argument("--prompt-tokens", dest="llm_prompt_tokens", type=_positive, metavar="N",
                       help="longest prompt; longer ones are shortened (default 48000)")
    group.add_argument("--temperature", dest="llm_temperature", type=_temperature, metavar="T", help="default 0.3")
    group.add_argument("--answer-seconds", dest="llm_call_s", type=_seconds, metavar="S",
                       help="longest wait for one answer, over all tries (default 300)")
    group.add_argument("--dollars", dest="llm_dollars", type=_seconds, metavar="D",
                       help="most money the job may cost; needs --prices")
    group.add_argument("--prices", dest="llm_prices", metavar="FILE", help="TOML with prices by model")
    group.add_argument("--prompts", dest="llm_prompts", metavar="DIR", help="prompts that replace ours by name")
    group.add_argument("--no-seeds", dest="llm_seeds", action="store_const", const=False,
                       help="no candidates of the built-in expert beside the model's")
    group.add_argument("--no-fallback", dest="llm_fallback", action="store_const", const=False,
                       help="stop, to be resumed, where the model gives no answer; the expert does not stand in")
    group.add_argument("--no-planning", dest="llm_planning", action="store_const", const=False,
                       help="ablation: candidates without space, direction and strategy")
    group.add_argument("--no-contract", dest="llm_contract", action="store_const", const=False,
                       help="ablation: the model sees the reference only, not the contract")
    group.add_argument("--fixed-space", action="store_const", const=True,
                       help="ablation: stay in --space, plan no narrower one")


def _judging(add: argparse.ArgumentParser) -> None:
    add.add_argument("--precision", choices=PRECISIONS, help="how exact a candidate must be (default match)")
    add.add_argument("--device", help="auto, cuda:N or none (default auto)")
    add.add_argument("--python", metavar="FILE", help="the interpreter that has your torch")


def _command(commands: argparse._SubParsersAction, name: str, place: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    module, function = place.split(":")

    def command(arguments: argparse.Namespace) -> int:
        return getattr(importlib.import_module(f"engine.cli.{module}"), function)(arguments)

    parser.set_defaults(command=command)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 2")
    return value


class _ShowVersion(argparse.Action):
    """Looks the version up when it is asked for: that takes longer than to read all other arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Say it and end."""
        print(f"hiera {_version()}")
        parser.exit()


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("hiera")
    except metadata.PackageNotFoundError:
        return "from a checkout"
