"""`UAG` as a speculative algorithm of sglang, through its registry."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..cli import value_of
from ..config import MODEL, TEXT, Settings
from .text.translator import read_override, refusal

logger = logging.getLogger(__name__)
NAME = "UAG"
DRAFT_TOKENS = 8
MAX_DRAFT_TOKENS = 64
RUNNING_REQUESTS = 48  # sglang's own default for speculative decoding


def register() -> None:
    """Make `--speculative-algorithm UAG` known in this process."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import get_spec

    if get_spec(NAME) is None:
        register_worker = SpeculativeAlgorithm.register(
            NAME, supports_overlap=True, validate_server_args=refuse_unsupported, spec_class=_algorithm())
        register_worker(_worker)


def _worker(server_args: Any) -> type:
    from .worker import UagWorker

    return UagWorker


def _algorithm() -> type:
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class UagAlgorithm(CustomSpecAlgo):
        """What sglang asks an algorithm. To the engine it is NGRAM's kin: drafts come from the host, the accepted
        tokens are handed back to it, and no draft cache follows the target's."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def carries_draft_hidden_states(self) -> bool:
            return False

        def need_topk(self) -> bool:
            return False

        def get_platform_worker_cls(self, *args: Any, **kwargs: Any) -> None:
            return None

        def create_future_map(self, device: Any, *args: Any, **kwargs: Any) -> Any:
            from .relay import UagFutureMap

            return UagFutureMap(device, self, *args, **kwargs)

        def handle_server_args(self, server_args: Any) -> None:
            set_defaults(server_args)

    return UagAlgorithm


def set_defaults(server_args: Any) -> None:
    """Complete the server's arguments as sglang does for its own algorithms.

    Raises:
        ValueError: `--speculative-num-draft-tokens` is out of range.
    """
    if server_args.speculative_num_draft_tokens is None:
        server_args.speculative_num_draft_tokens = DRAFT_TOKENS
    width = server_args.speculative_num_draft_tokens
    if not 2 <= width <= MAX_DRAFT_TOKENS:
        raise ValueError(f"--speculative-num-draft-tokens {width}: accepted with UAG: 2 to {MAX_DRAFT_TOKENS}")
    server_args.speculative_num_steps = width - 1
    server_args.speculative_eagle_topk = 1
    if server_args.enable_mixed_chunk:
        logger.warning("--enable-mixed-chunk is switched off: prompts are not mixed with drafts (UAG)")
    server_args.enable_mixed_chunk = False
    if server_args.max_running_requests is None:
        server_args.max_running_requests = RUNNING_REQUESTS
    if server_args.device == "cpu" and not Settings.from_environment().uag_overlap:
        server_args.disable_overlap_schedule = True


def refuse_unsupported(server_args: Any) -> None:
    """Raises ValueError for a server that could not draft as it should, before anything is loaded."""
    from .pair import load_tokenizer

    problem = _problem(server_args)
    if problem:
        raise ValueError(f"--speculative-algorithm {NAME} {problem}")
    settings = Settings.from_environment()
    path = settings.uag_map
    if MODEL not in settings.drafted_from:
        if path:
            raise ValueError(f"--uag-map {path}: --uag-sources {settings.uag_sources} has no draft model whose tokens "
                             "could be mapped; accepted: one of the two")
        return
    override, trust = read_override(path), server_args.trust_remote_code
    draft = load_tokenizer("--speculative-draft-model-path", server_args.speculative_draft_model_path,
                           server_args.speculative_draft_model_revision, trust)
    if override:  # worth reading both vocabularies twice: its names are an operator's
        target = load_tokenizer("--tokenizer-path", server_args.tokenizer_path, server_args.revision, trust)
        problem = refusal(target, draft, override=override)
        if problem:
            raise ValueError(f"--uag-map {path}: {problem}")


def _problem(server_args: Any) -> str | None:
    """What the flags ask for that UAG is not served with."""
    thresholds = (server_args.speculative_accept_threshold_single, server_args.speculative_accept_threshold_acc)
    sources, path = Settings.from_environment(), server_args.speculative_draft_model_path
    model = MODEL in sources.drafted_from
    refused = {
        f"needs --speculative-draft-model-path; accepted without one: --uag-sources {TEXT}": model and not path,
        f"with --uag-sources {sources.uag_sources} has no use for --speculative-draft-model-path {path}; accepted: one "
        "of the two": bool(path) and not model,
        "translates between tokenizers: --skip-tokenizer-init": model and server_args.skip_tokenizer_init,
        "is not served with pipeline parallelism (--pp-size)": server_args.pp_size > 1,
        "is not served with data parallel attention (--attn-dp-size), where ranks have batches of their own":
            server_args.enable_dp_attention or server_args.attn_dp_size > 1,
        "is not served with context parallelism (--attn-cp-size, --dcp-size), which a whole draft on each rank has not":
            server_args.attn_cp_size > 1 or server_args.dcp_size > 1,
        f"is not served with --tp-size and --moe-a2a-backend {server_args.moe_a2a_backend}: the first rank drafts "
        "alone, and experts of a draft would wait for the others; accepted: none":
            server_args.tp_size > 1 and server_args.moe_a2a_backend != "none",
        "is not served with prefill/decode disaggregation": server_args.disaggregation_mode != "null",
        "is not served with two-batch overlap": server_args.enable_two_batch_overlap,
        "has a length control of its own: --speculative-adaptive": server_args.speculative_adaptive,
        "accepts a draft where the target chooses the same token: --speculative-accept-threshold-single {} and "
        "--speculative-accept-threshold-acc {} would not be used; accepted: 1.0".format(*thresholds):
            thresholds != (1.0, 1.0),
        "reads prompts beside the target, which --enable-pdmux has done elsewhere; accepted: without it":
            server_args.enable_pdmux,
        "is not served with --enable-hisparse: sglang stages requests for its own drafts alone; accepted: without it":
            server_args.enable_hisparse,
        "drafts text, and a server that embeds writes none: --is-embedding; accepted: one of the two":
            server_args.is_embedding,
        "is not served with --enable-memory-saver: nothing would load the draft's weights again once they were "
        "released; accepted: without it": server_args.enable_memory_saver,
    }
    return next((text for text, true in refused.items() if true), None)


def refuse_missing_draft(argv: Sequence[str]) -> None:
    """Raises ValueError where the draft's path on a command line is one of this machine's, and nothing is there: sglang
    would look for it on the hub, and complain about a name."""
    path, algorithm = (value_of(argv, f"--speculative-{name}") for name in ("draft-model-path", "algorithm"))
    here = path is not None and path.startswith(("/", ".", "~"))
    if (algorithm or "").upper() == NAME and here and not Path(str(path)).expanduser().exists():
        raise ValueError(f"--speculative-draft-model-path {path}: there is no such folder")
