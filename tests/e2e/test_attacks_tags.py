"""Signed pushes to Debian's docker-registry behind a proxy that refuses or loses what is attached."""

import uuid
from pathlib import Path

import pytest

from envbuild.attest.attach import AttestOptions, sign
from envbuild.attest.statement import BUNDLE
from envbuild.oci.image import INDEX, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.push import push
from envbuild.registry.referrers import Artifact, attach, read_artifact, referrers, subject_of
from tests.fakes.images import image_of
from tests.fakes.index import serving
from tests.faults.proxy import FAIR, FaultyRegistry
from tests.faults.site import tags_of
from tests.reporting import Recorder
from tests.unit.attesting import key_pair
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site

pytestmark = pytest.mark.real


@pytest.fixture
def site(tmp_path):
    with serving(TENSORFLOW, TOOL) as index:
        yield Site(tmp_path, index.url)


def test_a_registry_that_refuses_signatures_keeps_its_tags(site, registry, tmp_path):
    key, _ = key_pair(tmp_path)
    name = f"attacks/{uuid.uuid4().hex}"
    push(image_of([b"what was there before"]), Reference(registry.host, name, "v1"))
    before = tags_of(registry.host, name)
    with FaultyRegistry(registry.host, FAIR) as proxy:
        words = ("--push", f"{proxy.host}/{name}:v1", "--sign", key, "--no-remote-cache")
        for proxy.subjects in (400, 403, 404, 405, 201):  # 201: as if it were stored
            done = site.build(*words)
            assert (done.returncode, done.stdout) == (14, ""), done.stderr
            assert f"no tag was moved, and {proxy.host}/{name}@sha256:" in done.stderr
            assert tags_of(registry.host, name) == before
        proxy.subjects = 0
        done = site.build(*words)
    assert done.returncode == 0, done.stderr
    digest = done.stdout.strip().partition("@")[2]
    tags = {tag for tag, it in tags_of(registry.host, name).items() if it == digest}
    assert {it.partition("-")[0] for it in tags} == {"v1", "env"}


def test_serving_is_signed_only_on_a_training_image_that_the_key_signed(site, registry, tmp_path):
    key, public = key_pair(tmp_path)
    other, other_public = key_pair(tmp_path, "other")
    name = f"attacks/{uuid.uuid4().hex}"
    signing = ("--sign", str(key), "--signature-format", "bundle")
    done = site.build("--push", f"{registry.host}/{name}:train", "--stamp", "model", *signing)
    assert done.returncode == 0, done.stderr
    trained = Reference.parse(done.stdout.strip())
    with Registry(registry.host) as there:  # whoever may push can empty the list of what is attached
        nothing = canonical_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": []})
        there.put_manifest(name, str(trained.digest).replace(":", "-"), nothing, INDEX)
    (site.folder / "app").mkdir()
    (site.folder / "app/serve.py").write_text("print('ready')\n")
    words = ("--role", "serve", "--gate", "off", "--no-bytecode", "--app", "app", "--cmd", "python /app/serve.py")

    def served(*options: str | Path, code: int) -> str:
        done = site.run("model", *words, "--push", f"{registry.host}/{name}:serve", "--sign", key, *options)
        assert done.returncode == code, done.stderr
        assert ("serve" in tags_of(registry.host, name)) == (code == 0)
        return done.stderr

    assert f"the training image {trained} is not signed by --sign's key: it has no signature" in served(code=16)
    sign(trained, AttestOptions(key=str(other)), Recorder())
    assert "none of its 2 signatures is by the key" in served(code=16)
    elsewhere = push(image_of([b"another image"]), Reference(registry.host, f"{name}/else")).reference
    sign(elsewhere, AttestOptions(key=str(key)), Recorder())
    with Registry(registry.host) as there:
        subject = subject_of(there, elsewhere).digest
        [one] = referrers(there, elsewhere.repository, subject)
        bundle = read_artifact(there, elsewhere.repository, one, subject)
        attach(there, name, subject_of(there, trained), [Artifact(kind=BUNDLE, data=bundle)])
    assert "it was signed for another image" in served("--parent-key", public, code=16)
    served("--signed", public, "--parent-key", other_public, code=0)
