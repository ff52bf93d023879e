"""Whether, and how well, a draft model can draft for a target with another tokenizer; nothing is served.

    python -m sglang_ext.uag.check_pair TARGET DRAFT [--text FILE] [--held-out N] [--map FILE] [--json]

Prints both tokenizers, what their vocabularies share, the map of control tokens and the draft's steps for a token of
the target. With the weights of both it measures the acceptance: the target continues a text greedily from several
places (`--text`), or answers prompts that `sglang_ext.uag.train` never trains on (`--held-out`), and the draft
plays along.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .offline_acceptance import Played, Tally, continue_greedily, play
from .text.draft_context import draft_context
from .text.translator import Meaning, SpecialMap, Translator, refusal_of
from .text.vocabulary import Untranslatable, Vocabulary

SAMPLE = ("The ferry left at half past six with only eleven passengers on board; nobody had counted them twice.\n\n"
          "def total(rows):\n    return sum(row.price * row.count for row in rows if row.count > 0)\n\n"
          "Der Fährmann fragte: «Wie viele?» — Ответ был прост: одиннадцать. 渡船六点半出发。十一名乘客。\n")
WIDTHS = (4, 8)
PLACES, CONTEXT, REPLY = 6, 384, 48  # of a text that are continued; the target's tokens before and after each
HELD_OUT_REPLY = 64  # the target's tokens after a held-out prompt


def load_vocabulary(path: str) -> Vocabulary:
    """A model's tokenizer, with the model's vocabulary size where its configuration is there.

    Args:
        path: a folder, a name in the local cache of the hub, or a tokenizer file of Mistral's.

    Raises:
        OSError, ValueError: there is no tokenizer.
    """
    from transformers import AutoConfig, AutoTokenizer
    from transformers.tokenization_mistral_common import MistralCommonBackend

    place = Path(path)
    if place.is_file():
        return Vocabulary.of(MistralCommonBackend(tokenizer_path=str(place)))
    if (place / "tekken.json").exists() and not (place / "tokenizer.json").exists():
        tokenizer: Any = MistralCommonBackend(tokenizer_path=str(place / "tekken.json"))
    else:
        tokenizer = AutoTokenizer.from_pretrained(path)
    try:
        size = AutoConfig.from_pretrained(path).get_text_config().vocab_size
    except (OSError, ValueError):
        size = None
    return Vocabulary.of(tokenizer, size)


def report(target: Vocabulary, draft: Vocabulary, text: str, override: Mapping[str, str] | None = None
           ) -> dict[str, Any]:
    """All that can be said without weights; fit for JSON."""
    reason = refusal_of(target, draft, override)
    found: dict[str, Any] = {"refusal": reason, "target": _described(target, text), "draft": _described(draft, text)}
    ours, theirs = (frozenset(filter(None, v.pieces)) for v in (target, draft))
    found["shared_pieces"] = {"count": len(ours & theirs), "of_target": _share(ours, theirs),
                              "of_draft": _share(theirs, ours)}
    try:
        translator = Translator(target, draft, SpecialMap.of(target, draft, override))
    except ValueError:  # the map; the reason says so
        return found
    context = draft_context(translator)
    context.confirm(_ids(target, text))
    found["same_tokenizer"] = translator.identity
    found["draft_steps_per_target_token"] = round(len(context.draft_ids) / max(len(_ids(target, text)), 1), 3)
    found["special_tokens"] = {_name(target, i): _shown(draft, m) for i, m in translator.specials.to_draft.items()}
    found["draft_ends"] = {_name(draft, i): _name(target, translator.specials.to_target[i])
                           for i in sorted(draft.eos) if i in translator.specials.to_target}
    return found


def acceptance(target_path: str, draft_path: str, translator: Translator, prompts: Sequence[tuple[str, Sequence[int]]],
               tokens: int) -> dict[str, dict[str, Any]]:
    """Acceptance by width and kind, along the target's own greedy replies.

    Args:
        prompts: the kind of each, and its ids.
        tokens: most ids of a reply.

    Raises:
        OSError, ValueError: the weights of one are not there.
    """
    import torch
    from transformers import AutoModelForCausalLM

    models: list[Any] = [AutoModelForCausalLM.from_pretrained(p, dtype=torch.bfloat16)
                         for p in (target_path, draft_path)]
    target, draft = (model.eval() for model in models)
    replies = continue_greedily(target, [ids for _, ids in prompts], tokens)
    texts = [Played(ids, _until_end(r, translator.target)) for (_, ids), r in zip(prompts, replies, strict=True)]
    found: dict[str, dict[str, Any]] = {}
    for width in WIDTHS:
        tallies = {kind: Tally() for kind, _ in prompts}
        for (kind, _), part in zip(prompts, play(draft, translator, texts, width), strict=True):
            tallies[kind].add(part)
        found[str(width)] = {kind: tally.summary() for kind, tally in tallies.items()}
    return found


def text_prompts(target: Vocabulary, text: str) -> list[tuple[str, Sequence[int]]]:
    """Places of a text to go on from."""
    ids = _ids(target, text)
    ends = sorted({max(len(ids) * k // PLACES, 1) for k in range(1, PLACES + 1)})
    opening = [] if target.bos is None else [target.bos]
    return [("text", [*opening, *ids[max(end - CONTEXT, 0) : end]]) for end in ends]


def held_out_prompts(target_path: str, count: int) -> list[tuple[str, Sequence[int]]]:
    """So many prompts of each kind as the target reads them, none of which a draft was trained on."""
    from transformers import AutoTokenizer

    from .train.prompts import held_out

    tokenizer = AutoTokenizer.from_pretrained(target_path)
    return [(prompt.kind, tokenizer.encode(prompt.render(tokenizer), add_special_tokens=False))
            for prompt in held_out(count)]


def _until_end(ids: Sequence[int], target: Vocabulary) -> list[int]:
    end = next((k for k, i in enumerate(ids) if i in target.eos), len(ids))
    return list(ids[: end + 1])


def _ids(vocabulary: Vocabulary, text: str) -> list[int]:
    """The text's ids, without the characters that the vocabulary lacks."""
    try:
        return vocabulary.encode(text.encode(), start=True)
    except Untranslatable:
        known = "".join(filter(vocabulary.writes, text))
    try:
        return vocabulary.encode(known.encode(), start=True)
    except Untranslatable:
        return []


def _described(vocabulary: Vocabulary, text: str) -> dict[str, Any]:
    ids = _ids(vocabulary, text)
    written = sum(len(vocabulary.pieces[i]) for i in ids)
    return {"tokenizer": vocabulary.kind, "vocabulary": len(vocabulary.pieces),
            "control_tokens": len(vocabulary.special),
            "start_of_text": None if vocabulary.bos is None else _name(vocabulary, vocabulary.bos),
            "ends": [_name(vocabulary, i) for i in sorted(vocabulary.eos)],
            "bytes_per_token": round(written / max(len(ids), 1), 2)}


def _share(ours: frozenset[bytes], theirs: frozenset[bytes]) -> float:
    return round(len(ours & theirs) / max(len(ours), 1), 4)


def _name(vocabulary: Vocabulary, i: int) -> str:
    return vocabulary.special.get(i) or vocabulary.added.get(i) or str(i)


def _shown(draft: Vocabulary, meaning: Meaning) -> str | None:
    if isinstance(meaning, bytes):
        return f"text {meaning.decode()!r}"
    return None if meaning is None else " ".join(_name(draft, i) for i in meaning)


def _lines(found: Mapping[str, Any]) -> list[str]:
    out = [f"refused: {found['refusal']}"] if found["refusal"] else ["the pair works"]
    for role in ("target", "draft"):
        its = found[role]
        out.append(f"{role:7}{its['tokenizer']}, {its['vocabulary']} ids, {its['control_tokens']} control tokens, "
                   f"{its['bytes_per_token']} bytes a token, starts with {its['start_of_text'] or 'nothing'}, "
                   f"ends with {', '.join(its['ends']) or 'nothing'}")
    shared = found["shared_pieces"]
    out.append(f"shared {shared['count']} pieces: {shared['of_target']:.1%} of the target's, "
               f"{shared['of_draft']:.1%} of the draft's")
    if "same_tokenizer" not in found:
        return out
    out.append("ids    pass through: the same tokenizer" if found["same_tokenizer"] else "ids    are translated")
    out.append(f"steps  {found['draft_steps_per_target_token']} of the draft for a token of the target")
    meanings = found["special_tokens"]
    out += [f"       {ours} -> {theirs}" for ours, theirs in meanings.items() if theirs is not None]
    opaque = [ours for ours, theirs in meanings.items() if theirs is None]
    if opaque:
        out.append(f"       not read by the draft: {', '.join(opaque[:12])}{' ...' if len(opaque) > 12 else ''}")
    out += [f"       {theirs} of the draft ends the text: {ours}" for theirs, ours in found["draft_ends"].items()]
    for width, kinds in found.get("acceptance", {}).items():
        out += [f"{kind}, drafts of {width}: acceptance {tally['acceptance']:.1%}, {tally['tokens_per_round']} tokens "
                f"and {tally['draft_steps_per_round']} draft steps a round" for kind, tally in kinds.items()]
    if "no_acceptance" in found:
        out.append(f"no acceptance: {found['no_acceptance']}")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 where the pair is refused."""
    parser = argparse.ArgumentParser(prog="python -m sglang_ext.uag.check_pair", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", metavar="TARGET", help="folder or name of the model")
    parser.add_argument("draft", metavar="DRAFT")
    parser.add_argument("--text", type=Path, help="a text like those to be served")
    parser.add_argument("--held-out", type=int, metavar="N", help="prompts of each kind that no training of ours saw, "
                        "instead of a text")
    parser.add_argument("--map", type=Path, help="JSON object, token of the target to token of the draft, or to \"\"")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.held_out is not None and (options.held_out < 1 or options.text):
        parser.error(f"--held-out {options.held_out}: accepted is 1 or more, without --text")
    try:
        text = options.text.read_text() if options.text else SAMPLE
        override = json.loads(options.map.read_text()) if options.map else {}
        if not isinstance(override, dict):
            raise ValueError(f"--map {options.map}: accepted is a JSON object, the target's token to the draft's")
        target, draft = load_vocabulary(options.target), load_vocabulary(options.draft)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    found = report(target, draft, text, override)
    if (options.text or options.held_out) and found["refusal"] is None:
        translator = Translator(target, draft, SpecialMap.of(target, draft, override))
        try:
            prompts, tokens = ((held_out_prompts(options.target, options.held_out), HELD_OUT_REPLY) if options.held_out
                               else (text_prompts(target, text), REPLY))
            found["acceptance"] = acceptance(options.target, options.draft, translator, prompts, tokens)
        except (OSError, ValueError) as error:
            found["no_acceptance"] = str(error).splitlines()[0]
    print(json.dumps(found, ensure_ascii=False, indent=1) if options.json else "\n".join(_lines(found)))
    return int(found["refusal"] is not None)


if __name__ == "__main__":
    sys.exit(main())
