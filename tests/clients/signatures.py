"""Signed images in registries, as cosign and envbuild itself verify them."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path

from envbuild.attest.attach import AttestOptions, SignatureFormat, attest
from envbuild.attest.statement import Facts
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.verify.registries import check_signed
from tests.clients.programs import COSIGN_2, COSIGN_3, CRANE, REFERRERS, GoProgram, offline
from tests.clients.rows import NOTHING, Row, verdict_of
from tests.e2e.services import running, running_registry
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.reporting import Recorder
from tests.unit.attesting import facts_of, key_pair

FORMATS: tuple[SignatureFormat, ...] = ("bundle", "legacy", "both")
_ROOT = '{"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1"}'
"""An empty trusted root: a key alone is trusted."""
_NO_ROOT = "no: trusted root is required when using new bundle format"
"""What cosign 2.6 says of bundles where sigstore's own root cannot be fetched."""


def rows(folder: Path) -> Iterator[Row]:
    """Sign an image in each format and registry, and have it verified."""
    private, public = key_pair(folder)
    with ExitStack() as stack:
        hosts = {
            "docker-registry 2.8": stack.enter_context(running_registry()).host,
            CRANE.title: stack.enter_context(_serving(CRANE, folder, "registry", "serve", "--address")),
            REFERRERS.title: stack.enter_context(_serving(REFERRERS, folder)),
        }
        for number, (name, host) in enumerate(hosts.items()):
            for kind in FORMATS:
                facts = _pushed(host, kind)
                options = AttestOptions(key=str(private), format=kind)
                attest(facts, options, Recorder())
                again = attest(facts, options, Recorder())
                agrees = all(it.agrees for it in check_signed(facts.reference, public))
                verdict = "yes" if agrees and not again else f"no: {len(again)} more attached by a second push"
                yield Row(client=name, what=f"{kind}: envbuild verify --signed, push again", verdict=verdict)
                yield from _verified(facts.reference, public, folder, kind) if not number else ()


def _verified(reference: Reference, public: Path, folder: Path, kind: SignatureFormat) -> Iterator[Row]:
    (folder / "root.json").write_text(_ROOT)
    variables = offline(folder)
    bundled = kind != "legacy"
    for client in (COSIGN_2, COSIGN_3):
        program = client.build()
        checks = {
            "verify": ("verify",),
            "verify-attestation slsaprovenance1": ("verify-attestation", "--type", "slsaprovenance1"),
            "verify-attestation cyclonedx": ("verify-attestation", "--type", "cyclonedx"),
        }
        for title, words in checks.items():
            command = [program, *words, "--key", public, "--insecure-ignore-tlog", reference]
            is_old = client is COSIGN_2 and bundled
            verdict = verdict_of(command, variables)
            expected = _NO_ROOT if is_old else "yes"
            yield Row(client=client.title, what=f"{kind}: {title}", verdict=verdict, expected=expected)
            if is_old:
                rooted = [*command, "--trusted-root", folder / "root.json"]
                verdict = verdict_of(rooted, variables)
                yield Row(client=client.title, what=f"{kind}: {title} --trusted-root", verdict=verdict)
        listed = verdict_of([program, "tree", reference], variables, says="🍒")
        expected = NOTHING if client is COSIGN_2 and kind == "bundle" else "yes"
        yield Row(client=client.title, what=f"{kind}: tree", verdict=listed, expected=expected)


def _pushed(host: str, kind: str) -> Facts:
    """A small image in a repository of its own, and what is known of it."""
    with FakeRegistry() as fake:
        known = facts_of(fake.host)
    pushed = push(image_of(), Reference(host, f"team/{kind}", "v1"))
    return Facts(**{it.name: getattr(known, it.name) for it in fields(Facts)} | {"reference": pushed.reference})


@contextmanager
def _serving(program: GoProgram, folder: Path, *words: str) -> Iterator[str]:
    log = folder / f"{program.name}.log"

    def address() -> str | None:
        found = re.search(r"serving on port (\d+)", log.read_text())
        return f"127.0.0.1:{found[1]}" if found else None

    with running([str(program.build()), *words, "127.0.0.1:0"], log, address) as host:
        yield host
