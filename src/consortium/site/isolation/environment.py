"""What of the agent's environment the task's process gets: what software needs to be found and
to count in the same way, and nothing else. No tokens, no proxies, no settings of ours."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = frozenset(
    {
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONHASHSEED",
        "PYTHONUTF8",
        "TORCH_HOME",
        "HF_HOME",
        "ATEN_CPU_CAPABILITY",
    }
)
# Of libraries for numbers: how many threads, which GPUs, how exactly.
_BEGINNINGS = (
    "LC_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "NUMEXPR_",
    "CUDA_",
    "CUBLAS_",
    "CUDNN_",
    "NVIDIA_",
    "HIP_",
    "ROCR_",
    "HSA_",
)


def environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Its own folders, HOME and TMPDIR, are set by the process itself."""
    kept = {
        name: value
        for name, value in ours.items()
        if name in _NAMES or name.startswith(_BEGINNINGS)
    }
    return kept | {"USER": "task", "LOGNAME": "task"}  # who runs the agent is nobody's business
