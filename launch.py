"""Serve a model whose requests have a think budget: `python launch.py --think-budget N [any sglang server flag]`."""

import sys

try:
    from sglang_ext.serve import main
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] not in ("sglang_ext", "sglang"):
        raise
    sys.exit(f"launch.py: {error}; install this folder first: `make serve`, or `pip install -e .`")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
