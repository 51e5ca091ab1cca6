"""Programs in Go, built at fixed versions from the Go module proxy into a folder that is kept."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.parts import cache_folder
from tests.environ import cleaned

_REGISTRY = """package main

import (
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/registry"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("serving on port %d", listener.Addr().(*net.TCPAddr).Port)
	log.Fatal(http.Serve(listener, registry.New(registry.WithReferrersSupport(true))))
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoProgram:
    """A program of a Go module."""

    name: str
    module: str
    version: str
    package: str
    source: str = ""
    """The program itself, where the module has none: a main.go that is put into the package."""

    @property
    def title(self) -> str:
        """Name and version, for people."""
        return f"{self.name} {self.version.removeprefix('v')}"

    def build(self) -> Path:
        """The program's file; it is built once, which takes minutes."""
        target = cache_folder() / "clients" / f"{self.name}-{self.version}"
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        at = ["go", "mod", "download", "-json", f"{self.module}@{self.version}"]
        found = subprocess.run(at, env=os.environ | {"GOFLAGS": ""}, capture_output=True, text=True, check=True)
        folder = target.with_name(f"{target.name}.source")
        shutil.rmtree(folder, ignore_errors=True)
        # A copy, as `go install MODULE@VERSION` refuses modules with replacements.
        subprocess.run(["cp", "-r", "--no-preserve=mode", json.loads(found.stdout)["Dir"], folder], check=True)
        if self.source:
            (folder / self.package).mkdir(parents=True)
            (folder / self.package / "main.go").write_text(self.source)
        new = target.with_name(f"{target.name}.new")
        flags = ["-buildvcs=false", "-ldflags=-s -w"]
        subprocess.run(["go", "build", *flags, "-o", new, f"./{self.package}"], cwd=folder, check=True)
        new.replace(target)
        shutil.rmtree(folder)
        return target


COSIGN_2 = GoProgram(name="cosign", module="github.com/sigstore/cosign/v2", version="v2.6.5", package="cmd/cosign")
COSIGN_3 = GoProgram(name="cosign", module="github.com/sigstore/cosign/v3", version="v3.1.3", package="cmd/cosign")
CRANE = GoProgram(name="crane", module="github.com/google/go-containerregistry", version="v0.22.1", package="cmd/crane")
REFERRERS = GoProgram(
    name="go-containerregistry-with-referrers",
    module=CRANE.module,
    version=CRANE.version,
    package="cmd/envbuild-test-registry",
    source=_REGISTRY,
)


def offline(folder: Path) -> dict[str, str]:
    """Variables for a client that reaches this machine's registries, and not sigstore's root."""
    nowhere = {"https_proxy": "http://127.0.0.1:9", "no_proxy": "127.0.0.1"}
    return cleaned(os.environ) | nowhere | {"HOME": str(folder), "TUF_ROOT": str(folder / "tuf")}
