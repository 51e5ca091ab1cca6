"""Statements and signatures in Debian's docker-registry, which has no list of referrers; checked by openssl, too."""

import json
import os
import re
import subprocess
import uuid
from pathlib import Path

import httpx
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envbuild.attest.attach import AttestOptions, attest
from envbuild.attest.statement import Facts
from envbuild.oci.image import INDEX, MANIFEST
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import push
from envbuild.registry.referrers import Artifact, attach, subject_of
from tests.e2e.parts import envbuild
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.fakes.sigstore import IDENTITY, SIGNED, FakeSigstore
from tests.reporting import Recorder
from tests.unit.attesting import facts_of, key_pair

pytestmark = pytest.mark.real
DOCS = Path(__file__).parents[2] / "docs/attestations.md"


def facts_at(host: str, name: str) -> Facts:
    """A small image under a name of its own, and what is known of it."""
    with FakeRegistry() as fake:
        known = facts_of(fake.host)
    pushed = push(image_of(), Reference(host, name, "v1"))
    return Facts(**{slot: getattr(known, slot) for slot in Facts.__slots__} | {"reference": pushed.reference})


@pytest.fixture
def signed(registry, tmp_path) -> tuple[Facts, Path]:
    """An image with everything attached, and the public key."""
    private, public = key_pair(tmp_path, password="letmein")
    facts = facts_at(registry.host, f"test/{uuid.uuid4().hex}")
    os.environ["COSIGN_PASSWORD"] = "letmein"
    try:
        assert len(attest(facts, AttestOptions(key=str(private)), Recorder())) == 8
    finally:
        del os.environ["COSIGN_PASSWORD"]
    return facts, public


def index_of(reference: Reference) -> dict:
    assert reference.digest
    url = f"http://{reference.registry}/v2/{reference.repository}/manifests/sha256-{reference.digest.hex}"
    return httpx.get(url, headers={"Accept": INDEX}, trust_env=False).raise_for_status().json()


def test_a_real_registry_takes_all_of_it_and_others_stay_beside(signed):
    facts, _ = signed
    reference = facts.reference
    with Registry(reference.registry) as registry:
        attach(registry, reference.repository, subject_of(registry, reference), [Artifact(kind="x/y", data=b"other")])
    kinds = [it["artifactType"] for it in index_of(reference)["manifests"]]
    bundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
    assert kinds == ["application/vnd.cyclonedx+json", "application/vnd.in-toto+json", *[bundle] * 3, "x/y"]
    with Registry(reference.registry) as registry:
        found = [registry.manifest(reference.repository, it["digest"]) for it in index_of(reference)["manifests"]]
        assert {it.media_type for it in found} == {MANIFEST}
    blob = json.loads(found[0].data)["layers"][0]["digest"]
    bill = httpx.get(f"http://{reference.registry}/v2/{reference.repository}/blobs/{blob}", trust_env=False).text
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None


def recipe(facts: Facts, public: Path, folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    reference = facts.reference
    assert reference.digest
    given = {"REGISTRY": f"http://{reference.registry}", "NAME": reference.repository, "HEX": reference.digest.hex}
    variables = os.environ | given | {"PUBLIC_KEY": str(public), "no_proxy": "127.0.0.1"}
    return subprocess.run(
        ["sh", "-e", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def test_the_recipe_of_the_documentation_checks_a_signature_with_openssl_alone(signed, tmp_path):
    facts, public = signed
    [script] = re.findall(r"```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    done = recipe(facts, public, tmp_path, script)
    assert (done.returncode, done.stdout) == (0, "Verified OK\n"), done.stderr
    _, other = key_pair(tmp_path, "other")
    assert recipe(facts, other, tmp_path, script).returncode != 0
    tampered = script.replace(
        "\n# what was signed", '\nsed -i \'s/"payload":"e/"payload":"f/\' bundle.json\n# what was'
    )
    assert tampered != script
    done = recipe(facts, public, tmp_path, tampered)
    assert (done.returncode != 0, "Verified OK" in done.stdout) == (True, False)


def test_verify_tells_signed_from_unsigned_by_its_exit_code(signed, tmp_path):
    facts, public = signed
    tagged = f"{facts.reference.name}:v1"
    done = envbuild(tmp_path, "verify", tagged, "--signed", public)
    assert "is signed by the key, and so are its provenance and its bill of materials" in done.stdout
    other = envbuild(tmp_path, "verify", tagged, "--signed", key_pair(tmp_path, "other")[1], "--json", check=False)
    [finding] = json.loads(other.stdout)["findings"]
    assert (other.returncode, finding["rule"], finding["agrees"]) == (16, "signed", False)
    plain = push(
        image_of([b"another"]), Reference(facts.reference.registry, f"test/{uuid.uuid4().hex}", "v1")
    ).reference
    none = envbuild(tmp_path, "verify", str(plain), "--signed", public, check=False)
    assert (none.returncode, "it has no signature" in none.stdout) == (16, True)


def test_a_push_attaches_and_signs_and_says_so(tmp_path, registry):
    """The whole command, on an image that is assembled of no wheel but one."""
    from tests.fakes.index import serving
    from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site

    private, public = key_pair(tmp_path)
    name = f"{registry.host}/test/{uuid.uuid4().hex}"
    with serving(TENSORFLOW, TOOL) as index:
        site = Site(tmp_path, index.url)
        (tmp_path / "bad.pem").write_text("none")
        refused = site.build("--push", f"{name}:v1", "--sign", "bad.pem", "--stamp", "model")
        assert (refused.returncode, "not a private key in PEM" in refused.stderr) == (2, True)
        assert not (tmp_path / "model/.envbuild").exists()
        done = site.build("--push", f"{name}:v1", "--sign", private, "--stamp", "model")
        assert done.returncode == 0, done.stderr
        again = site.build("--push", f"{name}:v1", "--sign", private)
    assert "attached to the image: bill of materials, provenance, signature, signature, signature" in done.stderr
    assert (again.returncode, "attached to" in again.stderr) == (0, False)
    found = envbuild(tmp_path, "verify", done.stdout.strip(), "--signed", public)
    assert found.stdout.startswith("ok ") or "\nok " in found.stdout
    kinds = [it.get("artifactType") for it in index_of(Reference.parse(done.stdout.strip()))["manifests"]]
    assert len(kinds) == 5


def test_a_push_signs_keyless_and_verify_holds_it_to_the_identity(tmp_path, registry):
    from tests.fakes.index import serving
    from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site

    name = f"{registry.host}/test/{uuid.uuid4().hex}"
    with FakeSigstore() as sigstore, serving(TENSORFLOW, TOOL) as index:
        site = Site(tmp_path, index.url)
        trust = {"ENVBUILD_SIGSTORE_TRUST_CONFIG": str(sigstore.trust_config(tmp_path)), "NO_PROXY": "127.0.0.1"}
        keyless = ("--push", f"{name}:v1", "--sign", "keyless")
        expired = site.build(*keyless, **trust, SIGSTORE_ID_TOKEN=sigstore.token(seconds=-60))
        assert (expired.returncode, "Signature has expired" in expired.stderr) == (14, True)
        done = site.build(*keyless, **trust, SIGSTORE_ID_TOKEN=sigstore.token())
        assert done.returncode == 0, done.stderr
        again = site.build(*keyless, **trust, SIGSTORE_ID_TOKEN=sigstore.token())
        token = sigstore.token()
    assert "attached to the image: bill of materials, provenance, signature, signature, signature" in done.stderr
    assert (again.returncode, "attached to" in again.stderr) == (0, False)
    assert token.partition(".")[0] not in done.stdout + done.stderr + expired.stderr
    # The instance is gone: verifying needs the trust config alone.
    found = envbuild(tmp_path, "verify", done.stdout.strip(), "--signed", SIGNED, env=trust)
    assert f"is signed by {IDENTITY}, and so are its provenance and its bill of materials" in found.stdout
    other = envbuild(tmp_path, "verify", done.stdout.strip(), "--signed", f"{SIGNED}2", env=trust, check=False)
    assert (other.returncode, "none of its 3 signatures is by" in other.stdout) == (16, True)
    by_key = envbuild(tmp_path, "verify", done.stdout.strip(), "--signed", key_pair(tmp_path)[1], check=False)
    assert by_key.returncode == 16
