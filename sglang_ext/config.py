"""The operator's settings: one frozen dataclass owns the defaults; flags and environment variables are read from it.

The environment carries the settings to every process that sglang starts, so a variable set by the operator and a flag
are the same thing; a flag wins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .budget.contract import AUTO, CEILING, STOP_MESSAGE, UNLIMITED, BudgetError, Limits, parse
from .budget.effort import Share, limits_something, parse_efforts

PREFIX = "SGLANG_EXT_"
NOT_SETTINGS = ("SGLANG_EXT_CACHE", "SGLANG_EXT_MAIN_NAME", "SGLANG_EXT_MAIN_PATH")
"""Our variables that are no settings: the cache folder, and what processes tell those that they start."""
TEST_PREFIX = PREFIX + "TEST_"
"""Of the tests' own variables, which a server is not concerned with."""


ONE_STEP = ("on", "off", "always")
MODEL, TEXT = SOURCES = ("draft", "text")
"""Sources of drafts: the draft model, and what is looked up in the text."""


class SettingsError(ValueError):
    """A setting that is not accepted; the message names flag, value and what is accepted."""


def _integer(text: str) -> int:
    return int(text, 10)


def _switch(text: str) -> bool:
    return {"1": True, "true": True, "0": False, "false": False}[text.lower()]


def _integer_or_auto(text: str) -> int | None:
    return AUTO if text == "auto" else _integer(text)


def _setting(default: Any, read: Callable[[str], Any], metavar: str | None, text: str) -> Any:
    return field(default=default, metadata={"read": read, "metavar": metavar, "help": text})


@dataclass(frozen=True)
class Settings:
    """What the operator can set. Counts are in tokens."""

    think_budget: int | None = _setting(
        None, _integer, "N",
        "most tokens a request may think, for requests that set no budget of their own; -1 = no limit, 0 = answer at "
        "once (default: no limit)",
    )
    think_budget_max: int | None = _setting(
        None, _integer, "N",
        "largest budget a request may ask for; with it, 'no limit' is not accepted, and the default budget is at most "
        "this (default: no ceiling)",
    )
    think_message: str = _setting(
        STOP_MESSAGE, str, "TEXT", "text written before the end marker when the budget closes the thinking; may be "
        "empty (default: the sentence that Qwen published for it)"
    )
    think_answer_tokens: int | None = _setting(
        AUTO, _integer_or_auto, "auto|N", "part of a request's max_new_tokens kept for the answer; the budget shrinks "
        "to leave it; auto = an eighth, 1 to 512, where the thinking is limited; 0 = none (default: auto)",
    )
    think_loops: bool = _setting(
        False, _switch, None, "end thinking that goes round in circles, for requests that do not say "
        "(default: it goes on)"
    )
    think_seconds: float | None = _setting(
        None, float, "S", "end thinking this many seconds after its request arrived, for requests that do not say "
        "(default: no deadline)"
    )
    think_effort: str = _setting(
        "", str, "NAME=BUDGET,...", "budgets of requests that set none but a reasoning_effort, for example "
        "low=1024,medium=25%%,high=-1; a percentage is of the request's max_new_tokens (default: none)",
    )
    think_start: str | None = _setting(
        None, str, "TEXT", "marker that opens thinking (default: the reasoning parser's, else the tokenizer's)"
    )
    think_end: str | None = _setting(None, str, "TEXT", "marker that ends thinking; goes with --think-start")
    think_one_step: str = _setting(
        "on", str, "on|off|always", "on = where more than a few ids are forced, they are read in one forward, if that "
        "brings more tokens than it costs the other requests; always = whatever it costs them, so that answers come as "
        "early as can be; off = they are written token by token (default: on)"
    )
    uag_lengths: str = _setting(
        "auto", str, "auto|fixed", "draft lengths of --speculative-algorithm UAG: auto = from acceptance and measured "
        "times, down to no draft; fixed = always as long as --speculative-num-draft-tokens allows (default: auto)"
    )
    uag_sources: str = _setting(
        ",".join(SOURCES), str, "S,S", "where drafts of --speculative-algorithm UAG come from: draft = the draft "
        "model, text = what stood behind the same tokens before; text alone needs no draft model (default: draft,text)"
    )
    uag_text: str = _setting(
        "all", str, "all|own", "texts that --uag-sources text looks at: all = a request's own prompt and response, and "
        "the responses of requests before it, as sglang's NGRAM does; own = nothing of other requests (default: all)"
    )
    uag_map: str = _setting(
        "", str, "FILE", "special tokens of target and draft that mean the same, for --speculative-algorithm UAG: a "
        'JSON object, target token to draft token, or to "" for none (default: by name and role)'
    )
    uag_overlap: bool = _setting(
        False, _switch, None, "with --speculative-algorithm UAG, keep overlap scheduling on a CPU, where nothing "
        "overlaps: a request that ended runs one more step (default: off there, on with a GPU)"
    )
    allow_unknown_sglang: bool = _setting(
        False, _switch, None, "start with a release of sglang that the hooks were not read against, if at least every "
        "signature fits; a warning names what is unknown (default: such a server does not start)"
    )

    def __post_init__(self) -> None:
        if (self.think_start is None) != (self.think_end is None):
            raise SettingsError("--think-start and --think-end go together: give both or neither")
        if self.think_start is not None and (not self.think_start or self.think_start == self.think_end):
            raise SettingsError(f"--think-start {self.think_start!r}, --think-end {self.think_end!r}: "
                                "accepted: two different, non-empty texts")
        if self.think_budget_max is not None and not 0 <= self.think_budget_max <= CEILING:
            raise SettingsError(f"--think-budget-max: {self.think_budget_max} is out of range; "
                                f"accepted: 0 to {CEILING}")
        if self.think_one_step not in ONE_STEP:
            raise SettingsError(f"--think-one-step {self.think_one_step!r}: accepted: {', '.join(ONE_STEP)}")
        if self.uag_lengths not in ("auto", "fixed"):
            raise SettingsError(f"--uag-lengths {self.uag_lengths!r}: accepted: auto, fixed")
        if not 0 < len(self.drafted_from) == len({*self.drafted_from} & {*SOURCES}):
            raise SettingsError(f"--uag-sources {self.uag_sources!r}: accepted: {', '.join(SOURCES)}, or both with a "
                                "comma between them")
        if self.uag_text not in ("all", "own"):
            raise SettingsError(f"--uag-text {self.uag_text!r}: accepted: all, own")
        self.efforts  # noqa: B018 - checks the rest

    @property
    def drafted_from(self) -> tuple[str, ...]:
        """The sources of drafts."""
        return tuple(self.uag_sources.split(","))

    @property
    def limits(self) -> Limits:
        """Ceiling and default for `contract.parse`.

        Raises:
            SettingsError: the defaults are no acceptable budget.
        """
        ceiling = CEILING if self.think_budget_max is None else self.think_budget_max
        base: dict[str, Any] = {"message": self.think_message, "loops": self.think_loops, "seconds": self.think_seconds}
        if self.think_answer_tokens is not AUTO:
            base["answer_tokens"] = self.think_answer_tokens
        default = self.think_budget
        if default is None:
            default = UNLIMITED if self.think_budget_max is None else self.think_budget_max
        try:
            floor = Limits(None, ceiling, self.think_budget_max is None, self.think_message)
            checked = parse({**base, "max_tokens": default}, floor, "--think-budget")
            return replace(floor, default=replace(checked, message=None, answer_tokens=self.think_answer_tokens))
        except BudgetError as error:
            text = str(error)
            for key in ("max_tokens", "message", "answer_tokens", "seconds"):
                flag = {"max_tokens": "--think-budget"}.get(key, "--think-" + key.replace("_", "-"))
                text = text.replace(f"--think-budget.{key}", flag)
            raise SettingsError(text) from None

    @property
    def efforts(self) -> Mapping[str, int | Share]:
        """Budgets of `reasoning_effort`, by its value.

        Raises:
            SettingsError: an effort's budget is not accepted, or the defaults are not.
        """
        limits = self.limits
        try:
            return parse_efforts(self.think_effort, limits)
        except BudgetError as error:
            raise SettingsError(str(error)) from None

    @property
    def enforces(self) -> bool:
        """Whether a request that sets no budget can be limited: such a server must know the model's markers."""
        default = self.limits.default
        return (default is not None and default.limited) or limits_something(self.efforts)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Settings from `SGLANG_EXT_*` variables.

        Raises:
            SettingsError: a variable's value is not accepted, or its name is unknown.
        """
        environment = os.environ if environment is None else environment
        known = {variable(f.name): f for f in fields(cls)}
        for name in environment:
            ours = name.startswith(PREFIX) and not name.startswith(TEST_PREFIX)
            if ours and name not in known and name not in NOT_SETTINGS:
                accepted = ", ".join(sorted({*known, NOT_SETTINGS[0]}))
                raise SettingsError(f"unknown environment variable {name}; known: {accepted}")
        values = {f.name: read(f.name, environment[name]) for name, f in known.items() if name in environment}
        return cls(**values)

    def to_environment(self) -> None:
        """Put these settings into this process's environment, for the processes it starts."""
        for f in fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                os.environ.pop(variable(f.name), None)
            else:
                os.environ[variable(f.name)] = str(int(value) if isinstance(value, bool) else value)


def variable(name: str) -> str:
    """Name of a setting's environment variable."""
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """Name of a setting's command line flag."""
    return "--" + name.replace("_", "-")


def read(name: str, text: str) -> Any:
    """Read one setting's text.

    Raises:
        SettingsError: it is not of the setting's type.
    """
    spec = next(f for f in fields(Settings) if f.name == name)
    try:
        return spec.metadata["read"](text)
    except ValueError:
        auto = " or auto" if spec.metadata["read"] is _integer_or_auto else ""
        kind = "a number" if spec.metadata["read"] is float else "an integer"
        raise SettingsError(f"{flag(name)}: {text!r} is not {kind}{auto}") from None
    except KeyError:
        raise SettingsError(f"{flag(name)}: {text!r}: accepted: 1, 0") from None
