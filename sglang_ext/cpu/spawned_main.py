"""Main module of a spawned process: `sglang_ext` is imported by now, so the parent's main module can be run."""

from sglang_ext.cpu.spawned import run_real_main

globals().update({k: v for k, v in run_real_main().items() if not k.startswith("__")})
