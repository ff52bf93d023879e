"""The error that ends a benchmark with a message instead of a traceback."""


class BenchError(Exception):
    """Something that the user can mend: a value, a server, a missing package."""


class Violated(BenchError):
    """A whole run found what must not be."""
