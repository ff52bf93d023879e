"""The command: `python -m sglang_ext.double_query --url URL --think-budget N "prompt"`.

One prompt's response is printed as text. Prompts from a file or from standard input are asked concurrently and come
back as one line of JSON each, in order: the fields of `Response`, or an `error`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import httpx
from tqdm import tqdm  # type: ignore[import-untyped]

from .client import Stream, double_query_async
from .request import APIS, MAX_TOKENS, MESSAGE, Endpoint, Query
from .wire import ServerError

_CONCURRENCY = 32
_FAILED = 1  # exit status: a prompt got no response


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m sglang_ext.double_query", allow_abbrev=False,
                                description="A think budget by two calls, on any server.")
    p.add_argument("prompt", nargs="?", help="text; left out, one prompt a line is read from --file")
    p.add_argument("--url", required=True, help="address of the server or router")
    p.add_argument("--think-budget", type=int, required=True, metavar="N", help="most thinking tokens, -1 = no limit")
    p.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="most tokens in all (%(default)s)")
    p.add_argument("--message", default=MESSAGE, metavar="TEXT", help="written before the end marker (Qwen's sentence)")
    p.add_argument("--api", choices=list(APIS), default="generate", help="(%(default)s)")
    p.add_argument("--model", help="model name for completions")
    p.add_argument("--family", metavar="NAME", help="the model's, as sglang's --reasoning-parser names it")
    p.add_argument("--tokenizer", metavar="PATH", help="send token ids, which is exact; needs transformers")
    p.add_argument("--send-text", action="store_true", help="send text in spite of --tokenizer")
    p.add_argument("--chat", action="store_true", help="a prompt is a user message: apply the tokenizer's template")
    p.add_argument("--params", type=_object, default={}, metavar="JSON", help='such as \'{"temperature": 0.6}\'')
    p.add_argument("--api-key", help="sent as a bearer token")
    p.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds without an answer (%(default)s)")
    p.add_argument("--stream", action="store_true", help="print pieces as they come; one prompt only")
    p.add_argument("--file", metavar="PATH",
                   help='a line is a text, or JSON: {"prompt": text or ids} or {"messages": [...]} (standard input)')
    p.add_argument("--concurrency", type=int, default=_CONCURRENCY, metavar="N", help="calls at once (%(default)s)")
    return p


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _endpoint(args: argparse.Namespace) -> Endpoint:
    tokenizer = None
    if args.tokenizer is not None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    return Endpoint(args.url, args.api, args.model, tokenizer, not args.send_text, family=args.family, headers=headers,
                    timeout=args.timeout)


def _query(args: argparse.Namespace, prompt: Any) -> Query:
    if args.chat and isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    return Query(prompt, args.think_budget, args.max_tokens, args.message, args.params)


def _prompts(path: str | None) -> Iterator[Any]:
    """The prompt of each line of a file that is not blank; a line that is no JSON object is a text."""
    with nullcontext(sys.stdin) if path is None else open(path, encoding="utf-8") as lines:
        texts = [line.strip() for line in lines]
    for text in texts:
        if not text:
            continue
        try:
            value = json.loads(text) if text.startswith("{") else None
        except json.JSONDecodeError:
            value = None
        named = [value[name] for name in ("prompt", "messages") if name in value] if isinstance(value, dict) else []
        yield named[0] if named else text


def _one(endpoint: Endpoint, query: Query, streamed: bool) -> None:
    with Stream(endpoint, query, streamed=streamed) as stream:
        for piece in stream:
            print(piece, end="", flush=True)
        print()
        r = stream.response
    print(f"[{r.outcome}, {r.think_tokens} thinking tokens, {r.completion_tokens} in all, {r.calls} calls, "
          f"{r.cached_tokens} cached, {r.finish_reason}]", file=sys.stderr)


async def _many(endpoint: Endpoint, queries: Sequence[Query], concurrency: int) -> int:
    """Print one line of JSON per query, in order; return how many failed."""
    slots, failed = asyncio.Semaphore(concurrency), 0
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits) as client:

        async def ask(query: Query) -> dict[str, Any]:
            async with slots:
                try:
                    return asdict(await double_query_async(endpoint, query, client))
                except (ValueError, ServerError, httpx.HTTPError) as error:
                    return {"error": f"{type(error).__name__}: {error}"}

        with tqdm(total=len(queries), unit="prompt", file=sys.stderr) as progress:
            tasks = [asyncio.create_task(ask(query)) for query in queries]
            for task in tasks:
                task.add_done_callback(lambda _: progress.update())
            for task in tasks:
                result = await task
                failed += "error" in result
                print(json.dumps(result, ensure_ascii=False), flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.concurrency < 1:
        parser.error(f"--concurrency: {args.concurrency} is out of range; accepted: an integer from 1 up")
    if args.stream and args.prompt is None:
        parser.error("--stream: prints one response as it comes; accepted: with a prompt as argument")
    try:
        endpoint = _endpoint(args)
        if args.prompt is None:
            queries = [_query(args, prompt) for prompt in _prompts(args.file)]
            return _FAILED if asyncio.run(_many(endpoint, queries, args.concurrency)) else 0
        _one(endpoint, _query(args, args.prompt), args.stream)
    except ValueError as error:
        parser.error(str(error))
    except (ServerError, httpx.HTTPError, OSError) as error:
        print(f"{parser.prog}: error: {type(error).__name__}: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
