"""One build from a lock to "in the registry", by the same functions as `envbuild from-manifest` calls; it prints JSON.

python -m benchmarks.build_envbuild [--bytecode] [--compression=zstd] LOCK_FOLDER BASE REPOSITORY CACHE [VARIABLE]
"""

import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from envbuild.base.interpreter import compiling_on
from envbuild.base.resolve import resolve_base
from envbuild.image.assembler import assemble, find_difference, prefetch_layer_keys, wheels_to_read
from envbuild.image.bytecode.compiler import Compiling, compiled_by
from envbuild.image.layers.cache import LayerCache
from envbuild.image.layers.maker import AssemblyOptions
from envbuild.lock.download import Downloads
from envbuild.lock.formats import read_existing_lock
from envbuild.lock.model import Lock
from envbuild.oci.compression import Compression
from envbuild.oci.reference import Reference
from envbuild.recipe import Base, Recipe
from envbuild.registry.pull import environment_tag, find_tagged, pull
from envbuild.registry.push import Upload, publish, push
from envbuild.registry.shared_cache import SharedCache
from envbuild.report import SILENT
from envbuild.retry import tune_interpreter


def main() -> None:
    tune_interpreter()
    began = time.perf_counter()
    words = [it for it in sys.argv[1:] if it.startswith("--")]
    folder, base_name, repository, cache, *variables = (it for it in sys.argv[1:] if it not in words)
    bytecode, text = "--bytecode" in words, next((it for it in words if it.startswith("--compression=")), "")
    compression = Compression.parse(text.partition("=")[2] or "gzip")
    lock = read_existing_lock(Path(folder))
    assert lock, folder
    reference = Reference.parse(repository)
    with SharedCache(reference) as shared:
        base = resolve_base(
            base_name,
            machine=lock.target.machine,
            cache=Path(cache),
            pull=lambda reference, machine: pull(reference, machine=machine),
            report=SILENT,
        )
        compiling = compiling_on(base, Path(cache), "leave --bytecode out") if bytecode else None
        recipe = make_recipe(base, lock, variables, compiled_by(base.interpreter) if compiling else "")
        recipe = replace(recipe, compression=compression)
        steps = {"base": time.perf_counter() - began}
        tagged = replace(reference, tag=environment_tag(recipe.environment), digest=None)
        claim = find_tagged(tagged, machine=recipe.target.machine)
        layers = LayerCache(Path(cache), compression=compression)
        problem = partial(find_difference, recipe=recipe, base=base, cache=layers, compiling=compiling)
        image = claim.prove(problem) if claim else None
        steps["asked"] = time.perf_counter() - began
        done = (
            push(image, reference).reference if image else made(recipe, base, Path(cache), reference, shared, compiling)
        )
    seconds = time.perf_counter() - began
    print(json.dumps({"reference": str(done), "seconds": seconds, "steps": steps, "peak": peak()}))


def make_recipe(base: Base, lock: Lock, variables: list[str], bytecode: str = "") -> Recipe:
    """A variable makes another environment of the same layers."""
    return Recipe(
        base_name=base.name,
        base_digest=base.digest,
        python_path=base.python_path,
        target=base.target,
        wheels=lock.wheels,
        variables=tuple((name, "1") for name in variables),
        labels=(),
        bytecode=bytecode,
    )


def made(
    recipe: Recipe, base: Base, folder: Path, reference: Reference, shared: SharedCache, compiling: Compiling | None
) -> Reference:
    """What `envbuild.build.assembler.Assembler.build` does, without CUDA's proof and without telling."""
    cache = LayerCache(folder, shared, compression=recipe.compression)
    with Downloads(folder) as downloads, Upload(reference) as upload:
        prefetch_layer_keys(recipe, cache)
        if needed := wheels_to_read(recipe, cache, compiling):
            downloads.start(needed)
            for layer in base.image.layers:
                upload.offer(layer)
        options = AssemblyOptions(on_layer=upload.offer, on_start=None if shared.last_error else upload.follow)
        result = assemble(recipe, base, downloads, cache, options, compiling)
        pushed = upload.finish(result.image).reference
        cache.share(result.results)
    publish({pushed: tuple(filter(None, (environment_tag(recipe.environment), reference.tag)))})
    return pushed


def peak() -> int:
    """Bytes that this process held at most, mapped files included (proc(5), VmHWM)."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
