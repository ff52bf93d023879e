"""The contract of think budgets, checked on one answer: from its ids, against what the server says of it.

A violation is one line: the rule's name, a colon, and what was found. `docs/budget.md` has the rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from ..options import UNLIMITED
from .answers import Answer, Ask, Choice, Wish
from .blocks import Reading, readings
from .forced import runs
from .placing import Placing, Seen, Verdict
from .served import Served

OUTCOMES = ("none", "natural", "grace", "forced", "eos", "implicit", "loop", "deadline", "asked", "open")
MOST_PLACINGS = 200


def check(served: Served, ask: Ask, answer: Answer, seen: Seen) -> list[str]:
    """Violations in an answer; empty if there are none."""
    if ask.kind == "bad":
        return _refusal(ask, answer)
    if answer.status == 400 and _unwritable(ask, answer):
        return []
    if answer.status != 200:
        return [f"status: {answer.status} instead of 200: {answer.error[:300]}"]
    faults = list(answer.faults)
    if ask.kind == "leave":
        return faults
    if len(answer.choices) != ask.choices:
        faults.append(f"n: {len(answer.choices)} responses instead of {ask.choices}")
    counts: list[set[int]] = []
    for number, choice in enumerate(answer.choices):
        found, thinking = _choice(served, ask, answer.prompt, choice, seen)
        counts.append(thinking)
        where = f"choice {number}: " if ask.choices > 1 else ""
        faults += [where + fault for fault in found]
    return faults + list(_usage(answer, counts))


def _refusal(ask: Ask, answer: Answer) -> list[str]:
    if answer.status != 400:
        return [f"refusal: {answer.status} instead of 400: {answer.error[:300]}"]
    return [] if ask.field in answer.error else [f"refusal: {ask.field!r} is not named: {answer.error[:300]}"]


def _unwritable(ask: Ask, answer: Answer) -> bool:
    """Whether a message was refused that not every vocabulary can write."""
    return not (ask.wish.message or "").isascii() and "message" in answer.error


def _choice(served: Served, ask: Ask, prompt: Sequence[int], choice: Choice, seen: Seen
            ) -> tuple[list[str], set[int]]:
    """What is wrong with a response in the reading that suits it best, and how many ids are thinking in those that suit
    it as well."""
    faults = [*_form(served, ask, choice)]
    if choice.finish == "abort" and not choice.ids:  # it never ran
        return faults, {0}
    found = [_reading(served, ask, choice, reading, seen) for reading in readings(served, prompt, choice.ids)]
    if not found:
        seen.undecided += 1
        return faults, set()
    best = min(found, key=lambda verdict: len(verdict.faults))
    if not best.faults:
        seen.learn(best.message, best.closing)
    return faults + best.faults, {v.thinking for v in found if len(v.faults) == len(best.faults)}


def _form(served: Served, ask: Ask, choice: Choice) -> Iterator[str]:
    """Counts, the finish and the text of a response."""
    count = len(choice.ids)
    if choice.completion_tokens is not None and choice.completion_tokens != count:
        yield f"completion_tokens: {choice.completion_tokens} reported, {count} ids"
    if count > ask.max_new and choice.finish != "abort":  # sglang does not cut what drafts brought with the abort
        yield f"length: {count} ids, of {ask.max_new}"
    if choice.finish == "length" and count != ask.max_new:
        yield f"finish: by length after {count} ids, of {ask.max_new}"
    if choice.finish not in ("stop", "length", *(["abort"] if ask.kind == "abort" else [])):
        yield f"finish: {choice.finish!r}"
    if choice.reasoning and choice.reasoning_tokens == 0:
        yield f"reasoning_content: {choice.reasoning[:60]!r} without reasoning tokens"
    if choice.reasoning is None and served.exact_text and not _written(served, choice):
        yield f"text: {choice.text[-80:]!r} is not what the ids write: {served.text(choice.ids)[-80:]!r}"


def _written(served: Served, choice: Choice) -> bool:
    """Whether the text is what the ids write, but for the stop at its end, and for bytes that are no characters.

    What a server shows of an id that its tokenizer does not know is not defined, so such a response passes.
    """
    if not all(0 <= i < len(served.pieces) and served.pieces[i] for i in choice.ids):
        return True
    whole, text = (part.replace("\ufffd", "") for part in
                   (served.text(choice.ids).decode(errors="replace"), choice.text))
    if not whole.startswith(text):
        return False
    rest = whole[len(text) :]
    if isinstance(choice.matched, int):
        return rest in ("", served.text([choice.matched]).decode(errors="replace"))
    if isinstance(choice.matched, str):
        return choice.matched in whole and (not rest or rest.startswith(choice.matched))
    return not rest or choice.finish == "abort"


def _reading(served: Served, ask: Ask, choice: Choice, reading: Reading, seen: Seen) -> Verdict:
    """A response in one reading, the server's ids where its report can place them best."""
    if choice.reasoning_tokens not in (None, reading.thinking):
        text = f"reasoning_tokens: {choice.reasoning_tokens} reported, {reading.thinking} in the ids"
        return Verdict([text], reading.thinking)
    wish, think = _in_force(served, ask.wish), choice.think
    if think is None:
        return Verdict(["think: no report of the budget"] if wish.given else [], reading.thinking)
    faults = [] if wish.given else [f"think: a report without a budget: {think}"]
    if think["outcome"] not in OUTCOMES:
        faults.append(f"outcome: {think['outcome']!r} is not one of {OUTCOMES}")
    faults += _limit(served, ask, wish, think["budget"])
    placings = islice(runs(served, choice.ids, reading, think["tokens"], think["forced_tokens"]), MOST_PLACINGS)
    verdicts = [Placing(served, ask, wish, choice, reading, {run.block: run for run in placed}, seen).verdict()
                for placed in placings]
    if not verdicts:
        faults.append(f"counts: {think} does not fit ids with {reading.thinking} in thinking")
        return Verdict(faults, reading.thinking)
    best = min(verdicts, key=lambda verdict: len(verdict.faults))
    best.faults[:0] = faults
    return best


def _in_force(served: Served, wish: Wish) -> Wish:
    """A request's budget with the server's default where it says nothing."""
    most = served.default if wish.max_tokens is None else wish.max_tokens
    return replace(wish, given=wish.given or served.default != UNLIMITED, max_tokens=most)


def _limit(served: Served, ask: Ask, wish: Wish, limit: int) -> Iterator[str]:
    """The limit in force is what was asked, or less where a part is kept for the answer."""
    asked = UNLIMITED if wish.max_tokens is None else wish.max_tokens
    kept = served.most_reserved(wish.answer_tokens, ask.max_new) > 0 and (asked == UNLIMITED or 0 <= limit <= asked)
    if limit != asked and not kept:
        yield f"budget: {limit} in force, {asked} asked"


def _usage(answer: Answer, counts: Sequence[set[int]]) -> Iterator[str]:
    """The sums over all responses."""
    usage, thinks = answer.usage, [choice.think for choice in answer.choices]
    if usage is None or any(choice.finish == "abort" for choice in answer.choices):
        return
    total = sum(len(choice.ids) for choice in answer.choices)
    if usage.get("completion_tokens") != total:
        yield f"usage.completion_tokens: {usage.get('completion_tokens')} reported, {total} ids"
    reported = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens", 0)
    sums = {sum(each) for each in islice(product(*counts), 10_000)} if all(counts) else {reported}
    if reported not in sums:
        yield f"usage.reasoning_tokens: {reported} reported, {sorted(sums)} in the ids"
    summed = usage.get("think") or {}
    for key in ("tokens", "forced_tokens") if all(thinks) and thinks else ():
        if summed.get(key) != sum(think[key] for think in thinks if think):
            yield f"usage.think.{key}: {summed.get(key)} is not the sum of {thinks}"
