"""Whether a release of sglang is one that the hooks were read against, by its source.

Nothing here imports sglang: a release is a folder or a wheel. `python -m sglang_ext.compat` compares one.
"""
