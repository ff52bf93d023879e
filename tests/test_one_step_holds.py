"""Who stays with ends that are written token by token: what a request asks for, and what a server does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang_ext.patches.one_step import _fits, _Reads

from sglang_ext.config import Settings

ASKS: dict[str, Any] = {
    "return_logprob": True, "return_hidden_states": True, "return_routed_experts": True, "return_indexer_topk": True,
    "return_sampling_mask": True, "grammar": object(), "custom_logit_processor": "text", "input_embeds": [[0.0]],
    "positional_embed_overrides": object(), "multimodal_inputs": object(), "session": object(), "lora_id": "adapter",
    "beam_group": object(),
}
PARAMS: dict[str, Any] = {"frequency_penalty": 0.1, "presence_penalty": -0.1, "repetition_penalty": 1.1,
                          "min_new_tokens": 2, "json_schema": "{}", "regex": "a", "ebnf": "a", "structural_tag": "{}"}


def request(**params: Any) -> Req:
    return Req("r", "", [1, 2, 3], SamplingParams(max_new_tokens=8, **params))


def test_a_request_for_ids_alone_fits() -> None:
    assert _fits(request(temperature=0.7, top_p=0.9, stop=["x"], logit_bias={"5": -1.0}, ignore_eos=True))


@pytest.mark.parametrize("name", ASKS)
def test_what_a_request_may_ask_for(name: str) -> None:
    asked = request()
    assert hasattr(asked, name), "sglang calls it something else"
    setattr(asked, name, ASKS[name])
    assert not _fits(asked)


@pytest.mark.parametrize("name", PARAMS)
def test_what_a_request_may_be_sampled_with(name: str) -> None:
    assert not _fits(request(**{name: PARAMS[name]}))


def reads(monkeypatch: pytest.MonkeyPatch, setting: str = "on", **more: Any) -> _Reads:
    """Of a scheduler that is like any other, but for `more`: its attributes, and sglang's settings by their path."""
    from sglang.srt import runtime_context
    from sglang.srt.hardware_backend.mlx import runtime as mlx

    contexts: dict[str, Any] = {
        "get_serving": SimpleNamespace(strip_thinking_cache=False),
        "get_exec": SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False),
                                    features=SimpleNamespace(enable_watermark=False)),
        "get_parallel": SimpleNamespace(attn_cp_size=1, dcp_size=1)}
    scheduler = SimpleNamespace(
        spec_algorithm=SimpleNamespace(is_none=lambda: True), disaggregation_mode=DisaggregationMode.NULL,
        model_config=SimpleNamespace(is_encoder_decoder=False), page_size=1, truncation_align_size=None,
        is_hybrid_swa=False, tree_cache=SimpleNamespace(supports_mamba=lambda: False), enable_hierarchical_cache=False,
        enable_lmcache=False, enable_unified_cache_external_linker=False, enable_hisparse=False,
        enable_unified_memory=False, require_mlp_sync=False, enable_pdmux=False, is_mixed_chunk=False,
        chunked_prefill_size=512, max_prefill_tokens=4096)
    for path, value in more.items():
        place: Any = scheduler
        *parts, name = path.split(".")
        if parts and parts[0] in contexts:
            place = contexts[parts.pop(0)]
        for part in parts:
            place = getattr(place, part)
        assert hasattr(place, name)
        setattr(place, name, value)
    for name, found in contexts.items():
        monkeypatch.setattr(runtime_context, name, lambda found=found: found)
    monkeypatch.setattr(mlx, "use_mlx", lambda: False)
    monkeypatch.setattr(Settings, "from_environment", lambda: Settings(think_one_step=setting))
    return _Reads.of(scheduler)


NOTHING: dict[str, Any] = {
    "spec_algorithm.is_none": lambda: False, "get_serving.strip_thinking_cache": True,
    "disaggregation_mode": DisaggregationMode.DECODE, "model_config.is_encoder_decoder": True,
}
WITH_THE_PROMPT: dict[str, Any] = {
    "page_size": 16, "truncation_align_size": 64, "get_exec.deterministic.enable_deterministic_inference": True,
    "get_exec.features.enable_watermark": True, "is_hybrid_swa": True, "tree_cache.supports_mamba": lambda: True,
    "enable_hierarchical_cache": True, "enable_lmcache": True, "enable_unified_cache_external_linker": True,
    "enable_hisparse": True, "enable_unified_memory": True, "require_mlp_sync": True, "get_parallel.attn_cp_size": 2,
    "get_parallel.dcp_size": 2, "enable_pdmux": True,
}


@pytest.mark.parametrize(("setting", "always"), [("on", False), ("always", True)])
def test_a_server_like_any_other(monkeypatch: pytest.MonkeyPatch, setting: str, always: bool) -> None:
    found = reads(monkeypatch, setting)
    assert (found.with_prompt, found.while_decoding, found.always, found.most) == (True, True, always, 512)
    assert reads(monkeypatch, chunked_prefill_size=None).most == 4096


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reads(monkeypatch, "off")
    assert (found.with_prompt, found.while_decoding) == (False, False)


@pytest.mark.parametrize("path", NOTHING)
def test_servers_that_read_no_end(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    found = reads(monkeypatch, **{path: NOTHING[path]})
    assert (found.with_prompt, found.while_decoding) == (False, False)


@pytest.mark.parametrize("path", WITH_THE_PROMPT)
def test_servers_that_read_with_the_prompt_alone(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    found = reads(monkeypatch, **{path: WITH_THE_PROMPT[path]})
    assert (found.with_prompt, found.while_decoding) == (True, False)
