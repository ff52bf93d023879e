"""The HTTP application for servers with several tokenizer workers.

Such a worker imports the application by name and loads no plugins; `SGLANG_HTTP_SERVER_APP_PATH` names this module
instead, which does.
"""

from sglang.srt.plugins import load_plugins

load_plugins()

from sglang.srt.entrypoints.http_server import app  # noqa: E402

from sglang_ext.patches import check_applied  # noqa: E402
from sglang_ext.patches.end_thinking import add_endpoint  # noqa: E402

check_applied()
add_endpoint(app)

__all__ = ["app"]
