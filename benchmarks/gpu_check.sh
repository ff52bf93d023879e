#!/usr/bin/env bash
# Everything about the budget kernels that a GPU can show, within ten minutes: their tests on the device, in a CUDA
# graph, in the interpreter and compiled ahead of time, then the benchmark. Needs torch, triton, numpy, pytest and
# hypothesis; sglang is not needed. Arguments go to the benchmark.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

"$python" -m pip install --quiet --no-deps --no-build-isolation -e .
"$python" -c 'import torch, triton; print("torch", torch.__version__, "triton", triton.__version__,
    torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU: the CPU path is checked")'
# Other tests of the repository start servers, and their fixtures with them.
timeout 280 "$python" -m pytest -q --noconftest -p no:cacheprovider --durations=5 \
    tests/test_budget_kernels.py tests/test_budget_oracle.py tests/test_budget_device.py tests/test_budget_compile.py
timeout 300 "$python" benchmarks/bench_budget_kernels.py --seconds 0.05 "$@"
