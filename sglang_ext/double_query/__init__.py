"""A think budget from the outside, on any server that continues a prompt: two calls instead of one.

The first call gets as many tokens as the thinking may take. If it ends by its length inside the thinking, the second
call's prompt is the first prompt, what was thought, a message and the end marker, and it gets the rest of the tokens.
The server's prefix cache makes the second prompt cheap. Nothing here needs sglang or torch.
"""

from .client import AsyncStream, Stream, double_query, double_query_async
from .request import MESSAGE, Endpoint, Query, Response
from .wire import ServerError

__all__ = [
    "MESSAGE",
    "AsyncStream",
    "Endpoint",
    "Query",
    "Response",
    "ServerError",
    "Stream",
    "double_query",
    "double_query_async",
]
