"""`launch.py`: from a command line to a running server, or to a clear message and status 2."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, NoReturn

from . import cpu
from .cli import add_flags, has_flag, peel, value_of
from .config import Settings, SettingsError
from .cpu.defaults import add_defaults, bind_threads
from .cpu.refusal import why_not
from .uag.algorithm import refuse_missing_draft

MODEL_FLAGS = ("--model-path", "--model")
PLUGIN = "sglang_ext"
USAGE = "python launch.py --think-budget N [--demo D | --model-path M] [any sglang server flag]"
DEMOS = {"smollm2": ("smollm2-135m-instruct", "How many days are in three weeks?"),
         "reasoner": ("reasoner", "Add 17, 25, 38, 64, 9.")}
"""Embedded models: the name they are served under, and a question to try. The function `demo.X.X` is X's folder."""
DEFAULT_DEMO = "smollm2"


class _UsageError(Exception):
    """A command line that cannot be served."""


class _Stopped(BaseException):
    """SIGTERM came before the server had a handler of its own. Not an Exception: nothing on the way may catch it."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line; sglang's usage alone is several screens."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


def main(argv: Sequence[str]) -> int:
    """Serve until stopped.

    Args:
        argv: arguments without the program's name.

    Returns:
        Exit status: 2 for a command line or an installation that cannot serve.
    """
    if any(arg in ("-h", "--help") for arg in argv):
        _print_help()
        return 0
    try:
        settings, rest = peel(argv)
        demo, rest = _peel_demo(rest)
        _check_plugin()
        settings.to_environment()
        on_cpu = _choose_engine(rest)
        _check_release(settings)
        _check_flags(rest)
        rest = _with_model(rest, demo)
        if on_cpu:
            rest = add_defaults(rest, value_of(rest, *MODEL_FLAGS) or "")
            bind_threads(rest)
        return _serve(settings, rest)
    except (_UsageError, SettingsError) as error:
        print(f"launch.py: {error}\nSee `python launch.py --help`.", file=sys.stderr, flush=True)
        return 2


def _print_help() -> None:
    ours = argparse.ArgumentParser(prog="launch.py", usage=USAGE, add_help=False,
                                   description="Serve a model whose requests have a think budget. Without "
                                   "--model-path: a small demo model.")
    add_flags(ours)
    _add_demo_flag(ours)
    print(ours.format_help())
    print("sglang's own flags:\n")
    print(_sglang_parser().format_help())


def _sglang_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = _Parser(prog="launch.py", add_help=False, usage=argparse.SUPPRESS)
    ServerArgs.add_cli_args(parser)
    return parser


def _add_demo_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--demo", choices=tuple(DEMOS), help="the model to serve: smollm2 is SmolLM2-135M-Instruct, "
                        "the default; reasoner is a model of 1 million parameters that was trained to think")


def _peel_demo(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Take `--demo` off a command line: the demo model's name, and the arguments that are left."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    _add_demo_flag(parser)
    try:
        ours, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise _UsageError(str(error).removeprefix("argument ")) from None
    if ours.demo is not None and has_flag(rest, *MODEL_FLAGS, "--config"):
        raise _UsageError(f"--demo {ours.demo} names a model, and so does --model-path or --config; give one of them")
    return ours.demo or DEFAULT_DEMO, rest


def _check_plugin() -> None:
    """The plugin must be installed and not filtered out, here and so in every process that is started."""
    installed = importlib.metadata.entry_points(group="sglang.srt.plugins")
    if PLUGIN not in {entry.name for entry in installed}:
        raise _UsageError("the plugin is not installed, so think budgets would not be enforced: `pip install -e .`")
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and PLUGIN not in {name.strip() for name in allowed.split(",")}:
        raise _UsageError(f"SGLANG_PLUGINS={allowed!r} leaves out {PLUGIN}, so think budgets would not be enforced; "
                          f"add {PLUGIN} to it, or unset it")


def _check_release(settings: Settings) -> None:
    """Refuse a release of sglang that the hooks were not read against, before it is imported."""
    from .patches.fit import require_known
    from .patches.hook import HookError

    try:
        require_known(settings.allow_unknown_sglang)
    except HookError as error:
        raise SettingsError(str(error)) from None


def _choose_engine(argv: Sequence[str]) -> bool:
    """Use sglang's CPU engine where there is no GPU, or where the CPU is asked for; return whether it is used."""
    asked = value_of(argv, "--device")
    if asked not in (None, "cpu") or (asked is None and cpu.gpu_available()):
        return False
    os.environ[cpu.ENGINE_VARIABLE] = "1"
    cpu.activate()
    cpu.add_attention_choice()
    if asked is None:
        print("No GPU found: serving on the CPU with sglang's CPU engine.", file=sys.stderr, flush=True)
    return True


def _check_flags(argv: Sequence[str]) -> None:
    """Refuse flags and values that sglang does not know, before anything is loaded."""
    if has_flag(argv, "--config"):  # flags stand in a file too: sglang merges and checks them
        return
    known = list(argv) if has_flag(argv, *MODEL_FLAGS) else [*argv, MODEL_FLAGS[0], "demo"]
    try:
        _sglang_parser().parse_args(known)
        refuse_missing_draft(argv)
    except (argparse.ArgumentTypeError, ValueError) as error:
        raise _UsageError(str(error)) from None


def _with_model(argv: Sequence[str], demo: str) -> list[str]:
    """The command line with a model: the demo model, made on first use, where none is named."""
    if has_flag(argv, *MODEL_FLAGS, "--config"):
        return list(argv)
    try:
        model = getattr(importlib.import_module(f".demo.{demo}", __package__), demo)()
    except RuntimeError as error:
        raise _UsageError(str(error)) from None
    defaults = {"--reasoning-parser": "qwen3", "--served-model-name": DEMOS[demo][0]}
    extra = [part for name, value in defaults.items() if not has_flag(argv, name) for part in (name, value)]
    return [*argv, MODEL_FLAGS[0], str(model), *extra]


def _serve(settings: Settings, argv: list[str]) -> int:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    from sglang_ext.patches import check_applied
    from sglang_ext.patches.hook import HookError

    signal.signal(signal.SIGTERM, _stop)
    try:
        check_applied()
        server_args = _resolved(prepare_server_args(argv))
        _announce(server_args)
        run_server(server_args)
    except HookError as error:
        raise SettingsError(str(error)) from None
    except (KeyboardInterrupt, _Stopped) as stopped:
        kill_process_tree(os.getpid(), include_parent=False)
        sys.stdout.flush()
        sys.stderr.flush()
        # No orderly end of the interpreter: a half-started server's sockets wait for peers that are gone.
        os._exit(128 + (signal.SIGTERM if isinstance(stopped, _Stopped) else signal.SIGINT))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _stop(signum: int, frame: Any) -> NoReturn:
    """End as after Ctrl-C, until the server installs its own handler, which drains requests first."""
    raise _Stopped


def _resolved(server_args: Any) -> Any:
    """Server arguments that sglang has checked against each other and the model's configuration."""
    try:
        server_args.resolve_once()
    except (ValueError, AssertionError, OSError, ImportError) as error:
        raise _UsageError(str(error) or type(error).__name__) from None
    problem = why_not(server_args)
    if problem:
        raise _UsageError(problem)
    return server_args


def _announce(server_args: Any) -> None:
    """Once the server answers, print its address and a request to try; from a thread, as the server blocks."""
    url = f"http://{server_args.host}:{server_args.port}"
    question = dict(DEMOS.values()).get(server_args.served_model_name, DEMOS[DEFAULT_DEMO][1])
    threading.Thread(target=_announce_when_ready, args=(url, question), daemon=True).start()


def _announce_when_ready(url: str, question: str) -> None:
    while not _answers(url + "/health"):
        time.sleep(0.5)
    body = {"messages": [{"role": "user", "content": question}], "think_budget": 8, "max_tokens": 96,
            "temperature": 0, "return_meta_info": True}
    print(f"\nServing on {url}\nTry it:\n  curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' "
          f"-d '{json.dumps(body)}'\n", flush=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
