"""The target's own continuations of prompts, in a file that grows by whole batches and is picked up where it ended."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm import tqdm

from ... import cpu
from .prompts import Prompt

SAMPLED_EVERY = 4
"""Every fourth continuation is sampled, the others are greedy: drafts are judged by the target's likeliest token, but a
draft also has to find its way back after a turn that greedy text never takes."""
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Text:
    """A prompt as the target read it and what it wrote, both with special tokens as text.

    `finished`: the reply ends with the target's end token.
    """

    kind: str
    prompt: str
    reply: str
    finished: bool


class Generator(Protocol):
    """What writes the target's continuations."""

    batch: int

    def write(self, prompts: Sequence[list[int]], temperatures: Sequence[float], seed: int) -> list[tuple[str, bool]]:
        """Continuations of token ids, and whether each one ended by itself."""

    def close(self) -> None: ...


class EngineGenerator:
    """sglang's offline engine: continuous batching, several times as fast as padded batches. In half precision its ids
    may depend on which requests shared a batch, so two runs can differ in near ties.

    Imports sglang, so a script that uses it needs the `__main__` guard of spawned processes.
    """

    batch = 64

    def __init__(self, target: str, dtype: str, reply_tokens: int) -> None:
        settings: dict[str, Any] = {}
        if not cpu.gpu_available():  # the pool is counted in tokens: what else the machine holds must not matter
            os.environ.setdefault(cpu.ENGINE_VARIABLE, "1")
            cpu.activate()
            settings = {"device": "cpu", "attention_backend": cpu.ATTENTION_BACKEND, "max_total_tokens": 64 * 320,
                        "mem_fraction_static": 0.98}
        import sglang

        # the engine takes signals over for good, and lets none end this program
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self._engine = sglang.Engine(model_path=target, dtype=dtype, max_running_requests=64, log_level="error",
                                     **settings)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        self._reply_tokens = reply_tokens

    def write(self, prompts: Sequence[list[int]], temperatures: Sequence[float], seed: int) -> list[tuple[str, bool]]:
        common = {"max_new_tokens": self._reply_tokens, "skip_special_tokens": False,
                  "spaces_between_special_tokens": False}
        params = [{**common, "temperature": t, "sampling_seed": seed + i} for i, t in enumerate(temperatures)]
        answers = self._engine.generate(input_ids=list(prompts), sampling_params=params)
        return [(a["text"], a["meta_info"]["finish_reason"]["type"] == "stop") for a in answers]

    def close(self) -> None:
        self._engine.shutdown()


class TransformersGenerator:
    """transformers' generate() in padded batches: the same ids for the same seed."""

    batch = 64

    def __init__(self, target: str, dtype: str, reply_tokens: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(target, padding_side="left")
        if self._tokenizer.pad_token is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, dtype)).eval().to(device)
        self._reply_tokens = reply_tokens

    def write(self, prompts: Sequence[list[int]], temperatures: Sequence[float], seed: int) -> list[tuple[str, bool]]:
        replies: list[tuple[str, bool]] = [("", False)] * len(prompts)
        for temperature in sorted(set(temperatures)):
            chosen = [i for i, t in enumerate(temperatures) if t == temperature]
            for i, reply in zip(chosen, self._batch([prompts[i] for i in chosen], temperature, seed), strict=True):
                replies[i] = reply
        return replies

    def _batch(self, prompts: list[list[int]], temperature: float, seed: int) -> list[tuple[str, bool]]:
        import torch

        torch.manual_seed(seed)
        inputs = self._tokenizer.pad({"input_ids": prompts}, return_tensors="pt").to(self._model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
        with torch.inference_mode():
            out = self._model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                                       max_new_tokens=self._reply_tokens, pad_token_id=self._tokenizer.pad_token_id,
                                       **sampling)
        return [self._reply(ids) for ids in out[:, inputs["input_ids"].shape[1]:].tolist()]

    def _reply(self, ids: list[int]) -> tuple[str, bool]:
        ends = self._model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        stop = next((i for i, token in enumerate(ids) if token in ends), None)
        kept = ids if stop is None else ids[:stop]
        return str(self._tokenizer.decode(kept, clean_up_tokenization_spaces=False)), stop is not None

    def close(self) -> None:
        del self._model


def read_texts(path: Path) -> list[Text]:
    """The texts in a file, none if there is no file. A last line that was cut off in writing is left out."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Text(**json.loads(line)) for line in lines]


def write_texts(path: Path, prompts: Sequence[Prompt], tokenizer: Any, generator: Generator, seed: int) -> list[Text]:
    """Continue every prompt that the file does not have yet; the file's texts are those of the first prompts.

    Args:
        path: JSON lines, one a text; grows by one batch at a time.
        prompts: all prompts, in an order that the seed alone determines.
        seed: of the sampled continuations.

    Returns:
        One text a prompt, in order.
    """
    texts = read_texts(path)
    whole = len(texts) - len(texts) % generator.batch if len(texts) < len(prompts) else len(texts)
    texts = texts[:whole]
    _rewrite(path, texts)
    with tqdm(total=len(prompts), initial=len(texts), desc=f"target writes {path.name}", unit="text") as bar:
        while len(texts) < len(prompts):
            batch = prompts[len(texts) : len(texts) + generator.batch]
            rendered = [p.render(tokenizer) for p in batch]
            positions = range(len(texts), len(texts) + len(batch))
            temperatures = [TEMPERATURE if i % SAMPLED_EVERY == SAMPLED_EVERY - 1 else 0.0 for i in positions]
            replies = generator.write([_ids(tokenizer, r) for r in rendered], temperatures, seed + len(texts))
            new = [Text(p.kind, r, reply, ended) for p, r, (reply, ended) in zip(batch, rendered, replies, strict=True)]
            _append(path, new)
            texts += new
            bar.update(len(new))
    return texts


def _ids(tokenizer: Any, rendered: str) -> list[int]:
    """Ids of a prompt, with the token that starts every text where the model has one, and never twice."""
    start = tokenizer.bos_token
    ids: list[int] = tokenizer(rendered, add_special_tokens=not (start and rendered.startswith(start)))["input_ids"]
    return ids


def _append(path: Path, texts: Sequence[Text]) -> None:
    with path.open("a") as file:
        file.write("".join(json.dumps(asdict(text)) + "\n" for text in texts))


def _rewrite(path: Path, texts: Sequence[Text]) -> None:
    fresh = path.with_suffix(".part")
    fresh.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts))
    os.replace(fresh, path)
