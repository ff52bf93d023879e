"""Command lines: our flags are peeled off; everything else is sglang's and stays as it is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields

from .config import Settings, SettingsError, flag, read


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags as a group of their own. Values stay text: `Settings` checks them."""
    group = parser.add_argument_group("sglang-ext: think budget")
    for f in fields(Settings):
        common = {"dest": f.name, "help": f.metadata["help"], "default": argparse.SUPPRESS}
        if f.metadata["metavar"] is None:
            group.add_argument(flag(f.name), action="store_const", const="1", **common)
        else:
            group.add_argument(flag(f.name), metavar=f.metadata["metavar"], **common)


def peel(argv: Sequence[str]) -> tuple[Settings, list[str]]:
    """Take our flags off a command line.

    Args:
        argv: arguments, without the program's name.

    Returns:
        The settings, flags over environment over defaults; and the arguments that are not ours, in order.

    Raises:
        SettingsError: a flag's value is missing or not accepted.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_flags(parser)
    try:
        ours, rest = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise SettingsError(str(error).removeprefix("argument ")) from None
    values = {f.name: getattr(Settings.from_environment(), f.name) for f in fields(Settings)}
    values |= {name: read(name, text) for name, text in vars(ours).items()}
    return Settings(**values), rest


def has_flag(argv: Sequence[str], *names: str) -> bool:
    """Whether one of the flags is on the command line, as `--flag value` or `--flag=value`."""
    return any(arg == name or arg.startswith(name + "=") for arg in argv for name in names)


def value_of(argv: Sequence[str], *names: str) -> str | None:
    """The value of the last of the flags on the command line."""
    found = None
    for i, arg in enumerate(argv):
        for name in names:
            if arg == name and i + 1 < len(argv):
                found = argv[i + 1]
            elif arg.startswith(name + "="):
                found = arg[len(name) + 1 :]
    return found
