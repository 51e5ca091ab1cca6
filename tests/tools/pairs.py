"""Write each model of tests/data/pairs/pairs.toml with a real release, load it with another one, and keep what happened.

`python -m tests.tools.pairs [TEXT ...]`: all pairs, or those whose name has one of the texts. uv makes the environments,
and they are removed in the end, unless PAIRS_ENVIRONMENTS names a folder that keeps them. pairs.json gets what capture
reads of each model, the distributions that were to load it, and what became of it; small models are kept beside it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from envbuild.capture.model import model_facts

PAIRS = Path(__file__).parents[1] / "data/pairs"
PROGRAM = Path(__file__).parents[1] / "e2e/artifacts/pair_models.py"
LOADER = "import pair_models; pair_models.main()"
UV = Path(sys.executable).with_name("uv")
LONGEST_KEPT, LONGEST_TEXT = 2200, 160
WITHOUT_NOISE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "numpy", "PYTHONWARNINGS": ""}


def read_pairs() -> list[dict[str, Any]]:
    """The pairs as the table has them, in its order."""
    pairs: list[dict[str, Any]] = tomllib.loads((PAIRS / "pairs.toml").read_text())["pair"]
    return pairs


def folder_of(name: str) -> str:
    """The folder of a pair's model."""
    return "".join(it if it.isalnum() or it in "-." else "-" for it in name.lower())


def interpreter(version: str) -> str:
    """The Python of pyenv with that minor version; otherwise uv finds one."""
    return next(map(str, Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")), version)


def environment(packages: str, folder: Path) -> Path:
    """The Python of an environment: `3.11 scikit-learn==1.3.2`; it is made at its first use."""
    version, *requirements = packages.split()
    place = folder / hashlib.sha256(packages.encode()).hexdigest()[:12]
    python = place / "bin/python"
    if not (place / "done").exists():
        subprocess.run([UV, "venv", "-q", "--clear", "-p", interpreter(version), place], check=True)
        if requirements:
            only = ("--only-binary", ":all:")
            subprocess.run([UV, "pip", "install", "-q", "--python", python, *only, *requirements], check=True)
        (place / "done").touch()
    return python


def installed(python: Path) -> dict[str, str]:
    """Each distribution of an environment by name."""
    done = subprocess.run([UV, "pip", "list", "--format", "json", "--python", python], check=True, capture_output=True)
    return {it["name"]: it["version"] for it in json.loads(done.stdout)}


def run(python: Path, what: str, model: str, path: Path) -> dict[str, Any]:
    """Run the program there; the last line that it prints."""
    kind, how, _ = model.split()
    # As another program than the one that wrote it, whose own classes it does not have.
    start = [PROGRAM] if what == "write" else ["-c", f"import sys; sys.path[:0] = [{str(PROGRAM.parent)!r}]; {LOADER}"]
    command = [python, *start, what, kind, how, path]
    environ = {**os.environ, **WITHOUT_NOISE}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, cwd=path.parent)
    try:
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = {"error": f"exit status {done.returncode}: {' '.join(done.stderr.split())[-LONGEST_TEXT:]}"}
    return said


def outcome(wrote: dict[str, Any], loaded: dict[str, Any], path: Path) -> str:
    """`same`, `other predictions`, or the error; with the first warning."""
    if "error" in loaded:
        return str(loaded["error"]).replace(f"{path.parent}/", "")[:LONGEST_TEXT]
    one, other = wrote["predictions"], loaded["predictions"]
    alike = len(one) == len(other) and all(abs(it - that) < 1e-3 for it, that in zip(one, other, strict=True))
    warning = f"; {loaded['warnings'][0]}" if loaded["warnings"] else ""
    return f"{'same predictions' if alike else 'other predictions'}{warning}"[:LONGEST_TEXT]


def try_pair(pair: dict[str, Any], folder: Path, environments: Path) -> dict[str, Any]:
    """Write with one release and load with the other."""
    path = folder / pair["model"].split()[2]
    wrote = run(environment(pair["wrote"], environments), "write", pair["model"], path)
    if "error" in wrote:
        return {"says": f"NOTHING WRITTEN: {wrote['error']}", "model": {}, "packages": {}}
    there = environment(pair["loads"], environments)
    loaded, packages = run(there, "load", pair["model"], path), installed(there)
    facts = model_facts(str(path))
    kept = path.is_file() and path.stat().st_size < LONGEST_KEPT
    if kept:
        (PAIRS / folder_of(pair["name"])).mkdir(exist_ok=True)
        shutil.copyfile(path, PAIRS / folder_of(pair["name"]) / path.name)
    record = {it: facts[it] for it in ("format", "written_by", "details", "artifacts", "unread") if it in facts}
    return {"says": outcome(wrote, loaded, path), "model": record, "packages": packages}


def main() -> None:
    """Try the pairs, and write pairs.json after each."""
    store, pairs = PAIRS / "pairs.json", read_pairs()
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        environments = Path(os.environ.get("PAIRS_ENVIRONMENTS", folder))
        for number, pair in enumerate(pairs):
            if sys.argv[1:] and not any(it in pair["name"] for it in sys.argv[1:]):
                continue
            place = Path(folder, str(number))
            place.mkdir()
            found = try_pair(pair, place, environments)
            print(f"{pair['name']} ({pair['verdict']}): {found['says']}", flush=True)
            known = {**(json.loads(store.read_text()) if store.exists() else {}), pair["name"]: found}
            names = [it["name"] for it in read_pairs() if it["name"] in known]
            lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in names]
            store.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
