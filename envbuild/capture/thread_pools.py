"""The libraries in this process that compute in threads of their own: BLAS and OpenMP.

Their functions have the names that threadpoolctl's documentation lists.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict

from envbuild.capture.loaded import loaded_library, number_from, text_from
from envbuild.capture.reading import Facts, decoded


def find_thread_pools(libraries: list[Facts]) -> list[Facts]:
    """Ask each BLAS and OpenMP library; `libraries` are as Native has them."""
    pools: list[Facts] = []
    chosen = any(library["name"].startswith("libmkl_core.") for library in libraries)
    for library in libraries:
        kind = next((kind for kind, (pattern, _) in _POOLS.items() if re.match(pattern, library["name"])), None)
        if kind is None:
            continue
        # Until it has chosen its other libraries, a question would make it load them.
        asleep = library["name"].startswith("libmkl_rt.") and not chosen
        handle = None if asleep else loaded_library(library["path"])
        facts = _POOLS[kind][1](handle) if handle is not None else {}
        if facts is not None:
            pools.append(dict(facts, kind=kind, library=library["name"]))
    return pools


def _openblas(library: Any) -> Facts | None:
    # Those that SciPy and NumPy bring have names of their own, and so have those with 64-bit indices.
    names = ["%sopenblas_%%s%s" % (prefix, suffix) for prefix in ("", "scipy_") for suffix in ("", "64_", "_64")]
    name = next((name for name in names if hasattr(library, name % "get_num_threads")), None)
    if name is None:
        return None
    version = re.match(r"OpenBLAS (\S+)", text_from(library, name % "get_config") or "")
    return {
        "version": version.group(1) if version else None,
        "threads": number_from(library, name % "get_num_threads"),
        "architecture": text_from(library, name % "get_corename"),
    }


def _mkl(library: Any) -> Facts | None:
    if not hasattr(library, "MKL_Get_Max_Threads"):
        return None
    import ctypes

    text = ctypes.create_string_buffer(256)
    library.MKL_Get_Version_String(text, len(text))
    version = re.search(r"Version (\d[\d.]*)", decoded(text.value))
    return {"version": version.group(1) if version else None, "threads": number_from(library, "MKL_Get_Max_Threads")}


def _blis(library: Any) -> Facts | None:
    threads = number_from(library, "bli_thread_get_num_threads")
    if threads is None:
        return None
    architecture = number_from(library, "bli_arch_query_id")
    return {
        "version": text_from(library, "bli_info_get_version_str"),
        # -1 where nothing was set, which is one.
        "threads": max(threads, 1),
        "architecture": text_from(library, "bli_arch_string", architecture) if architecture is not None else None,
    }


def _openmp(library: Any) -> Facts | None:
    threads = number_from(library, "omp_get_max_threads")
    return {"threads": threads} if threads is not None else None


_POOLS: Dict[str, tuple[str, Callable[[Any], "Facts | None"]]] = {
    "openblas": (r"lib(?:scipy_)?openblas", _openblas),
    "mkl": (r"lib(?:mkl_rt|torch_cpu)\.", _mkl),
    "blis": (r"libblis", _blis),
    "openmp": (r"lib[gi]?omp5?[-.]", _openmp),
}
"""By the name of the file; PyTorch has MKL within its own library."""
