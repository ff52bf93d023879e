"""UAG through the real server: whatever is drafted, responses are those of the same server without speculation.

The target is a real model in float32. Of a random draft hardly a token is right, so every round goes back; the shipped
draft and what is looked up in the text are right often, so rounds accept many at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import requests
import servers
from prometheus_client.parser import text_string_to_metric_families
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from uag_models import build_random_model

pytestmark = pytest.mark.served

SHIPPED = servers.ROOT / "sglang_ext" / "demo" / "models" / "smollm2-draft"
NEW = 12
TEXTS = [
    "Once upon a time there was a fox who", "The following is a list of planets:\n1. Mercury\n2.",
    "1, 1, 2, 3, 5, 8, 13,", "<|im_start|>user\nName the capital of France.<|im_end|>\n<|im_start|>assistant\n",
    "Où est la bibliothèque ?", "Übrigens, größere Straßen", "¿Cuántos días tiene un año?",
    "Столица России — это", "中国的首都是", "昔々あるところに",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return", "for (int i = 0; i < 10; i++) {\n\t",
    '{"name": "Ada", "age": 36, "languages": [', "Phone: +49 (0)89 1234567890, fax: +49",
    # emoji, and characters of several code points
    "👩‍👩‍👧‍👦 👍🏽 are emoji: 🎉🎂", "e\u0301a\u0300 ﬁ ★☆★☆",
]
STORY, LIST, COUNT, QUESTION = TEXTS[:4]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def body(text: str, new: int = NEW, **params: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": new, **params}}


def special_requests() -> dict[str, dict[str, Any]]:
    """What a request can ask for beside plain text, greedy or so that one token remains to be sampled."""
    logprobs = {"return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": 0}
    banned = DisallowedTokensLogitsProcessor.to_str()
    return {
        "one token": body(STORY, 1),
        "two tokens": body(STORY, 2),
        "ignored end": body(QUESTION, ignore_eos=True),
        "stop string": body(STORY, stop=["who", " the "]),
        "stop in a list": body(LIST, stop=["4."]),
        "stop token": body(COUNT, stop_token_ids=[42]),
        "logprobs": body(STORY) | logprobs,
        "logprobs of some ids": body(COUNT) | logprobs | {"token_ids_logprob": [1, 42, 300]},
        "schema": body("A person as JSON: ", 20, json_schema=json.dumps(SCHEMA)),
        "regex": body(COUNT, regex="( [0-9]+,)+"),
        "schema with logprobs": body("A person as JSON: ", 10, json_schema=json.dumps(SCHEMA)) | logprobs,
        "frequency penalty": body(LIST, frequency_penalty=0.7),
        "presence penalty": body(LIST, presence_penalty=0.7),
        "repetition penalty": body(LIST, repetition_penalty=1.3),
        "minimum": body(QUESTION, min_new_tokens=9),
        "bias": body(STORY, logit_bias={"260": 4.0, "28": -100.0}),
        "custom processor": body(STORY) | {"custom_logit_processor": banned} | {
            "sampling_params": {"temperature": 0, "max_new_tokens": NEW, "custom_params": {"token_ids": [28, 260]}}},
        "best of a temperature": body(STORY, temperature=0.8, top_k=1),
        "tiny nucleus": body(COUNT, temperature=1.2, top_p=1e-6),
        "two samples": body(STORY, n=2),
        "again, from the prefix cache": body(STORY),
        "a long prompt": body(" ".join(TEXTS), 8),
    }


SPECIAL = special_requests()


def in_batches(server: servers.Server, bodies: Sequence[dict[str, Any]], size: int) -> list[Any]:
    return [r for at in range(0, len(bodies), size) for r in server.generate_all(bodies[at : at + size])]


@dataclass(frozen=True)
class Answers:
    """A server's answers to TEXTS, in one batch, and to SPECIAL."""

    texts: list[Any]
    special: dict[str, Any]

    @classmethod
    def of(cls, server: servers.Server) -> Answers:
        """All kinds at once, so that each shares its verifications with every other kind."""
        texts = in_batches(server, [body(text) for text in TEXTS], 16)
        return cls(texts, dict(zip(SPECIAL, in_batches(server, list(SPECIAL.values()), 16), strict=True)))


@pytest.fixture(scope="module")
def plain() -> Answers:
    server = servers.launch("--dtype", "float32", "--max-running-requests", "16", "--enable-custom-logit-processor")
    try:
        return Answers.of(server)
    finally:
        server.stop()


@dataclass(frozen=True)
class Setting:
    """A way to serve.

    Attributes:
        flags, environment: of the server.
        width: 1 + the tokens of a draft.
        draft: which draft model; None: none.
    """

    flags: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    width: int = 4
    draft: str | None = "random"


FIXED = ("--uag-lengths", "fixed")
SETTINGS = {
    "fixed": Setting((*FIXED, "--uag-sources", "draft")),
    "text": Setting((*FIXED, "--uag-sources", "text"), width=6, draft=None),
    # decoding runs ahead of the host, prompts come in chunks, and requests are taken off their slots
    "overlap": Setting(("--chunked-prefill-size", "64"), {
        "SGLANG_EXT_UAG_OVERLAP": "1", "SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "7"},
        draft="shipped"),
    "auto": Setting(()),
    "shipped": Setting(FIXED, width=8, draft="shipped"),
}


@dataclass
class Served:
    """A server with UAG, how it is set, and its answers."""

    server: servers.Server
    name: str
    width: int
    answers: Answers


@pytest.fixture(scope="module", params=SETTINGS)
def served(request: pytest.FixtureRequest, plain: Answers, tmp_path_factory: pytest.TempPathFactory,
           ) -> Iterator[Served]:
    setting = SETTINGS[request.param]
    draft = [] if setting.draft is None else ["--speculative-draft-model-path", str(
        SHIPPED if setting.draft == "shipped" else build_random_model(tmp_path_factory.mktemp("draft")))]
    server = servers.launch("--dtype", "float32", "--speculative-algorithm", "UAG", *draft,
                            "--speculative-num-draft-tokens", str(setting.width),
                            "--max-running-requests", "16", "--enable-metrics", "--enable-custom-logit-processor",
                            *setting.flags, **setting.environment)
    try:
        yield Served(server, request.param, setting.width, Answers.of(server))
    finally:
        left = server.stop()
    assert not left


def test_texts_are_answered_as_without_speculation(served: Served, plain: Answers) -> None:
    for text, got, wanted in zip(TEXTS, served.answers.texts, plain.texts, strict=True):
        assert got["output_ids"] == wanted["output_ids"], text
        assert got["text"] == wanted["text"], text
        assert got["meta_info"]["finish_reason"] == wanted["meta_info"]["finish_reason"], text
    found = served.answers.texts
    if served.name == "fixed":
        assert sum(result["meta_info"]["uag"]["proposed"] for result in found) > 14 * len(found)
    if served.name in ("shipped", "text"):
        accepted = sum(result["meta_info"]["uag"]["accepted"] for result in found)
        share = {"shipped": 0.1, "text": 0.02}[served.name]
        assert accepted > share * sum(len(result["output_ids"]) for result in found)


def test_answers_do_not_depend_on_the_batch(served: Served, plain: Answers) -> None:
    """One request alone, and four beside requests that sample, that end early and that may not be drafted for."""
    assert served.server.generate(**body(COUNT))["output_ids"] == plain.texts[2]["output_ids"]
    mates = [body(text, 3 + 4 * i, temperature=1.0, **({"frequency_penalty": 0.5} if i % 2 else {}))
             for i, text in enumerate(TEXTS[:4])]
    with ThreadPoolExecutor(1) as pool:
        others = pool.submit(served.server.generate_all, mates)
        found = served.server.generate_all([body(text) for text in TEXTS[8:12]])
        others.result()
    assert [r["output_ids"] for r in found] == [r["output_ids"] for r in plain.texts[8:12]]


def logprobs(result: dict[str, Any], name: str) -> list[Any]:
    """Numbers and ids of one list of logprobs, flat."""
    entries = result["meta_info"].get(name) or []
    return [x for entry in entries for one in (entry if isinstance(entry[0], list) else [entry]) for x in one[:2]]


def test_every_kind_of_request(served: Served, plain: Answers) -> None:
    found = served.answers.special
    for name, wanted in plain.special.items():
        if served.name == "overlap" and name.endswith(("penalty", "minimum")):
            continue  # sglang forgets what it counted of a request when it is retracted, with drafts or without
        pairs = list(zip(*(r if isinstance(r, list) else [r] for r in (found[name], wanted)), strict=True))
        for got, want in pairs:
            assert got["output_ids"] == want["output_ids"], name
            assert got["text"] == want["text"], name
            assert got["meta_info"]["finish_reason"] == want["meta_info"]["finish_reason"], name


LOGPROBS = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs", "input_token_logprobs")


@pytest.mark.parametrize("name", [name for name in SPECIAL if "logprobs" in name])
def test_logprobs(served: Served, plain: Answers, name: str) -> None:
    got, wanted = served.answers.special[name], plain.special[name]
    for kind in LOGPROBS:
        assert bool(got["meta_info"].get(kind)) == bool(wanted["meta_info"].get(kind)), kind
        assert logprobs(got, kind) == pytest.approx(logprobs(wanted, kind), abs=1e-4), kind


@pytest.mark.parametrize("name", ["frequency penalty", "presence penalty", "repetition penalty", "minimum",
                                  "custom processor"])
def test_what_depends_on_the_whole_output_is_not_drafted_for(served: Served, name: str) -> None:
    if served.name not in ("fixed", "text"):
        pytest.skip("drafts are certain with fixed lengths alone")
    uag = served.answers.special[name]["meta_info"].get("uag")
    assert uag is None or (uag["proposed"], uag["draft_forwards"]) == (0, 0)


def test_a_stream_comes_in_order(served: Served, plain: Answers) -> None:
    with requests.post(served.server.url + "/generate", json={**body(STORY), "stream": True}, stream=True,
                       timeout=120) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith(b"data: ")]
    assert lines[-1] == b"[DONE]"
    texts = [json.loads(line)["text"] for line in lines[:-1]]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    wanted = plain.texts[TEXTS.index(STORY)]
    assert texts[-1] == wanted["text"]
    assert json.loads(lines[-2])["output_ids"] == wanted["output_ids"]


def test_a_known_prefix_is_cached_and_drafted_for(served: Served, plain: Answers) -> None:
    """The target finds its prompt in the prefix cache, where nothing of the draft's is."""
    for _ in range(2):
        result = served.server.generate(**body(LIST))
        assert result["output_ids"] == plain.texts[TEXTS.index(LIST)]["output_ids"]
    assert result["meta_info"]["cached_tokens"] > 5
    if served.name == "fixed":
        assert result["meta_info"]["uag"]["proposed"] > 0


def test_counts(served: Served) -> None:
    """sglang's counts and ours are of the same drafts, and padding is none of them."""
    for meta in (result["meta_info"] for result in served.answers.texts if len(result["output_ids"]) > 1):
        uag, histogram = meta["uag"], meta["spec_correct_drafts_histogram"]
        assert meta["spec_num_proposed_drafts"] == uag["proposed"] + uag["forced"]
        assert meta["spec_num_correct_drafts"] == uag["accepted"] <= uag["proposed"]
        assert uag["proposed"] <= (served.width - 1) * uag["rounds"]
        assert sum(histogram) == meta["spec_verify_ct"]
        assert sum(i * n for i, n in enumerate(histogram)) == meta["spec_num_correct_drafts"]
        assert uag["rejections"]["verification"] == uag["proposed"] - uag["accepted"]
        assert sum(uag["proposed_by"].values()) == uag["proposed"]
        for source, other in (("text", "fixed"), ("draft", "text")):
            assert uag["accepted_by"][source] <= uag["proposed_by"][source]
            assert served.name != other or uag["proposed_by"][source] == 0
        if served.name != "overlap":  # a retracted request writes some tokens twice, and rounds in flight are dropped
            assert sum(uag["accepted_by"].values()) == uag["accepted"]
            assert uag["rounds"] <= meta["spec_verify_ct"]
            # a draft may foresee the end, behind which the verification's last token is dropped
            dropped = 1 + meta["spec_verify_ct"] + meta["spec_num_correct_drafts"] - meta["completion_tokens"]
            assert dropped == 0 or (dropped == 1 and meta["finish_reason"]["type"] == "stop")


def scraped(server: servers.Server) -> dict[str, float]:
    text = requests.get(server.url + "/metrics", timeout=60).text
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {s.name + s.labels.get("cause", "") + s.labels.get("source", ""): s.value for s in samples
            if s.name.startswith("sglang_ext:uag_") and not s.name.endswith("_created")}


def test_metrics(served: Served) -> None:
    if served.name != "shipped":
        pytest.skip("they do not depend on the setting")
    before = scraped(served.server)
    found = [r["meta_info"]["uag"] for r in served.server.generate_all([body(STORY), body(LIST)])]
    after = scraped(served.server)
    names = {"proposed": "proposed_tokens", "forced": "forced_tokens", "accepted": "accepted_tokens",
             "draft_forwards": "draft_forwards", "translation_us": "translation_microseconds"}
    for key, name in names.items():
        name = f"sglang_ext:uag_{name}_total"
        assert after[name] - before.get(name, 0) == sum(uag[key] for uag in found), name
    for source, kind in ((source, kind) for source in ("draft", "text") for kind in ("proposed", "accepted")):
        name = f"sglang_ext:uag_source_{kind}_tokens_total{source}"
        assert after[name] - before.get(name, 0) == sum(uag[f"{kind}_by"][source] for uag in found), name
    name = "sglang_ext:uag_rejections_totalverification"
    assert after[name] - before.get(name, 0) == sum(uag["rejections"]["verification"] for uag in found)
