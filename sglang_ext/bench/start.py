"""Main module of a benchmark's server: `python -m sglang_ext.bench.start (ours|stock) [sglang's flags]`.

`ours` is what `launch.py` does. `stock` is sglang as published: the caller's environment leaves the plugin out.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    kind, *argv = sys.argv[1:]
    if kind == "ours":
        from sglang_ext.serve import main

        sys.exit(main(argv))
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(argv))
