"""Serving benchmarks with a report: `python -m sglang_ext.bench COMMAND [--quick] [--out DIR]`.

Every command starts and ends the servers it needs, or measures one that runs elsewhere (`--url`). Rows are written as
they are measured, and the report is made from them alone, so that it can be made of half a run as well.
"""


class BenchError(Exception):
    """Something that the user can mend: a value, a server, a missing package."""


class Violated(BenchError):
    """A whole run found what must not be."""
