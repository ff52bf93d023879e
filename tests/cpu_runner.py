"""A model in sglang's own model runner on the CPU, without a server, with attention backends to choose from.

Run as a program, it answers one question in a process of its own, since sglang's runtime is set up once a process:
`cpu_runner.py MODEL DTYPE PROMPTS_JSON TOKENS BACKEND...` prints the greedy ids of each backend as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from collections.abc import Sequence
from typing import Any

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import sglang_ext.cpu

POOL_TOKENS = 20000


class CpuRunner:
    """One model; `use` chooses the attention backend that the next calls go through."""

    def __init__(self, model: str, dtype: str, *flags: str) -> None:
        from sglang.benchmark import one_batch
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs, prepare_server_args

        sglang_ext.cpu.register_attention()
        arguments = prepare_server_args(["--model-path", model, "--dtype", dtype, "--device", "cpu", "--log-level",
                                         "error", "--attention-backend", "torch_batched", "--max-total-tokens",
                                         str(POOL_TOKENS), "--max-running-requests", "64", *flags])
        arguments.resolve_once()
        ranks = SpawnRanks(world_rank=one_batch.spawn_world_rank(arguments, tp_rank=0, pp_rank=0), gpu_id=0)
        publish(arguments, role="scheduler", ranks=ranks)
        one_batch._init_process_global_configs()
        bench, _ = one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)
        self._bench, self.runner = bench, bench.torch_runner

    def use(self, backend: str) -> None:
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        self.runner.attn_backend = ATTENTION_BACKENDS[backend](self.runner)

    def prefill(self, prompts: Sequence[Sequence[int]], cut: int = 0) -> tuple[Any, Any]:
        """Next ids [n] and the batch to decode. With a cut, the first ids are cached by a prefill of their own."""
        from sglang.benchmark.one_batch import Req, SamplingParams

        self._bench.clear()
        reqs = []
        for i, prompt in enumerate(prompts):
            ids = array("q", prompt[:cut] if cut else prompt)
            req = Req(rid=i, origin_input_text="", origin_input_ids=ids, sampling_params=SamplingParams(temperature=0))
            req.full_untruncated_fill_ids = req.origin_input_ids
            req.logprob_start_len = -1
            req.extend_end = len(ids)
            reqs.append(req)
        ids, _, batch = self._bench.extend(reqs)
        if cut:
            for req, prompt in zip(reqs, prompts, strict=True):
                req.full_untruncated_fill_ids.extend(prompt[cut:])
                req.prefix_len = cut
                req.extend_end = len(prompt)
            ids, _, batch = self._bench.extend(reqs)
        return ids, batch

    def greedy(self, prompts: Sequence[Sequence[int]], tokens: int, cut: int = 0) -> list[list[int]]:
        ids, batch = self.prefill(prompts, cut)
        out = [ids.tolist()]
        for _ in range(tokens - 1):
            ids, _ = self._bench.decode(ids, batch)
            out.append(ids.tolist())
        return [list(row) for row in zip(*out, strict=True)]


def main(model: str, dtype: str, prompts_json: str, tokens: str, *backends: str) -> None:
    runner = CpuRunner(model, dtype)
    prompts = json.loads(prompts_json)
    found = {}
    for backend in backends:
        runner.use(backend)
        alone = [runner.greedy([prompt], int(tokens))[0] for prompt in prompts[:2]]
        found[backend] = {"together": runner.greedy(prompts, int(tokens)), "alone": alone,
                          "cached": runner.greedy(prompts, int(tokens), cut=min(map(len, prompts)) // 2)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
