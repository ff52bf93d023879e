"""Several requests under one id: choices (`n`) and prompts of one call, as a client that ends thinking names them.

sglang gives each choice an id of its own, which it tells with the response; the id that the client gave belongs to
nobody then. So the sampling parameters, of which each choice has a copy, say what else a request is called.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CALL = "think_call"
"""Key in sampling parameters, as long as they are in the process that serves HTTP: the id of all that was asked for at
once."""
ENDPOINT = "think_endpoint"
"""The same: an OpenAI endpoint asks, whose client knows the ids of the parts as the response's."""
NAMES_KEY, RESPONSE_KEY = "think_names", "think_response"
"""Keys in `custom_params` on the way to the scheduler: the other ids of a request; the one that its own stands for."""


def note_call(obj: Any) -> None:
    """Let the requests that one call becomes know its id: the client's, else a new one."""
    if not hasattr(obj, "max_thinking_tokens"):  # an embedding
        return
    params = obj.sampling_params
    if not _is_several(obj, params):
        return
    call = {CALL: obj.rid if isinstance(obj.rid, str) else uuid.uuid4().hex}
    obj.sampling_params = [{**p, **call} for p in params] if isinstance(params, list) else {**(params or {}), **call}


def _is_several(obj: Any, params: Any) -> bool:
    each = params if isinstance(params, list) else [params or {}]
    if not all(isinstance(p, Mapping) for p in each):
        return False  # sglang refuses it
    ids = obj.input_ids
    batch = isinstance(obj.text, list) or (isinstance(ids, list) and bool(ids) and isinstance(ids[0], list))
    return batch or any(p.get("n", 1) != 1 for p in each)


def carried(call: str | None, rid: str, endpoint: bool) -> dict[str, Any]:
    """What `custom_params` say of a request's ids.

    Args:
        call: id of the call that the request is a part of; None: it is all of it.
        rid: its own id before sglang gives each choice a new one.
        endpoint: see `ENDPOINT`.
    """
    return {NAMES_KEY: [] if call is None else [call, rid], RESPONSE_KEY: call if endpoint else None}


@dataclass(eq=False)
class Named:
    """The requests that one id names. They hold it, and it does not hold them."""

    requests: list[weakref.ref[Any]] = field(default_factory=list)


_named: weakref.WeakValueDictionary[str, Named] = weakref.WeakValueDictionary()
"""Of this scheduler's requests."""


def note_names(req: Any, custom: Any) -> None:
    """Know a new request by its other ids. One that only reads a prompt for the choices that follow is none of them."""
    req.think_response = None
    names = custom.get(NAMES_KEY) if isinstance(custom, Mapping) else None
    if not isinstance(names, list) or not names or not req.sampling_params.max_new_tokens:
        return
    held = []
    for name in {str(name) for name in names} - {req.rid}:
        held.append(_named.setdefault(name, Named()))
        held[-1].requests.append(weakref.ref(req))
    req.think_names, req.think_response = held, custom.get(RESPONSE_KEY)


def named(rid: str) -> list[Any] | None:
    """This scheduler's requests that an id names beside the one whose own it is; None: it names none."""
    several = _named.get(rid)
    return None if several is None else [req for ref in several.requests if (req := ref()) is not None]
