"""Think budgets for sglang.

Imported before sglang, this also makes sglang's CPU engine usable with the published wheel, where it is asked for
(`SGLANG_USE_CPU_ENGINE=1`) and there is no GPU.
"""

from . import cpu

__version__ = "0.1.0"

cpu.activate()
