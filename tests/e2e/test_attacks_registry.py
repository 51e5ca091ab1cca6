"""What somebody who may push to a repository can do to others who push there; against Debian's docker-registry.

Each attack leaves false tags in the repository. Whoever builds gets the true image all the same, or, where layers are
taken from the repository, has nothing of it left in the cache of the machine.
"""

import json
import uuid
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from envbuild.cli import commands
from envbuild.errors import RegistryError
from envbuild.image.layers.writer import LayerResult
from envbuild.oci.digest import Digest
from envbuild.oci.image import CONFIG, INDEX, LAYER_GZIP, MANIFEST, Descriptor, canonical_json
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.pull import pull
from envbuild.registry.shared_cache import SharedCache
from tests.fakes.index import serving
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import make_wheel
from tests.unit.attesting import key_pair
from tests.unit.test_from_manifest import NOT_USED, TENSORFLOW, manifest_of

pytestmark = pytest.mark.real
ONE = make_wheel("one", "1.0", {"shared.txt": "of one"})
TWO = make_wheel("two", "1.0", {"shared.txt": "of two"})
EVIL = image_of_trees({"opt/env/evil": b"evil"}).layers[0]
WORDS = ("from-manifest", "manifest.json", "--base", "base", "--no-bytecode", "--json", "--push")
DEEP = "[" * 100_000 + "]" * 100_000


@dataclass(frozen=True, slots=True)
class Truth:
    """What one machine, named `builder`, built and pushed before anybody attacked."""

    folder: Path
    repository: Reference
    first: dict[str, Any]


class Site:
    """A copy of the repository, and commands run on machines that have nothing but their own cache."""

    def __init__(self, truth: Truth, monkeypatch: pytest.MonkeyPatch, output: Any) -> None:
        self.folder, self.first, self.digest = truth.folder, truth.first, truth.first["digest"]
        self.output, self.monkeypatch, self.stderr = output, monkeypatch, ""
        self.name = uuid.uuid4().hex
        self.target = Reference(truth.repository.registry, f"attacks/{self.name}")
        self.registry = Registry(self.target.registry)
        source = truth.repository.repository
        for tag in self.registry.tags(source):
            found = self.registry.manifest(source, tag)
            value = json.loads(found.data)
            for blob in (value["config"], *value["layers"]):
                assert self.registry.mount(self.target.repository, Digest.parse(blob["digest"]), source=source)
            self.put(tag, found.data)

    def built(self, machine: str, *options: str, repository: str = "") -> dict[str, Any]:
        """What a build prints that has to succeed, on a machine with a cache of that name."""
        self.monkeypatch.setenv("ENVBUILD_CACHE", str(self.cache(machine)))
        self.output.readouterr()
        place = f"{self.target.name}{repository}"
        code = commands.run([*WORDS, place, *options])
        out, self.stderr = self.output.readouterr()
        assert code == 0, self.stderr
        found: dict[str, Any] = json.loads(out)
        return found

    def cache(self, machine: str) -> Path:
        return self.folder / (machine if machine == "builder" else f"{self.name}-{machine}")

    def tags(self, start: str) -> list[str]:
        return [tag for tag in self.registry.tags(self.target.repository) if tag.startswith(start)]

    def manifest(self, target: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.registry.manifest(self.target.repository, target).data)
        return found

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        with self.registry.open_blob(self.target.repository, Descriptor.from_dict(descriptor)) as file:
            return file.read()

    def put_blob(self, data: bytes, media_type: str = CONFIG) -> dict[str, Any]:
        descriptor = Descriptor(media_type, Digest.of(data), len(data))
        self.registry.put_blob(self.target.repository, descriptor, lambda: BytesIO(data))
        return descriptor.to_dict()

    def put(self, tag: str, manifest: dict[str, Any] | bytes, media_type: str = MANIFEST) -> None:
        data = manifest if isinstance(manifest, bytes) else canonical_json(manifest)
        self.registry.put_manifest(self.target.repository, tag, data, media_type)

    def hide_environment(self) -> None:
        """Let the environment's tag name something that is no image, so that layers are asked for."""
        [tag] = self.tags("env-")
        self.put(tag, self.manifest(self.tags("layer-")[0]))

    def falsify_facts(self, change: Callable[[Any], str | None]) -> list[str]:
        """Give facts another text; those for which `change` returns None stay."""
        changed = []
        for tag in self.tags("fact-"):
            artifact = self.manifest(tag)
            if (text := change(json.loads(artifact["annotations"]["dev.envbuild.value"]))) is not None:
                artifact["annotations"]["dev.envbuild.value"] = text
                self.put(tag, artifact)
                changed.append(tag)
        return changed

    def falsify_layer(self, name: str) -> None:
        """Publish another layer for the wheel of that name."""
        with EVIL.open() as file:
            self.put_blob(file.read(), LAYER_GZIP)
        [image] = self.tags("env-")
        config = json.loads(self.blob(self.manifest(image)["config"]))
        [number] = [n for n, it in enumerate(config["history"]) if name in it["created_by"]]
        true = self.manifest(image)["layers"][number]["digest"]
        keys = [
            Digest(tag.removeprefix("layer-"))
            for tag in self.tags("layer-")
            if self.manifest(tag)["layers"][0]["digest"] == true
        ]
        lie = LayerResult(EVIL.descriptor.digest, EVIL.descriptor.size, EVIL.diff_id)
        with SharedCache(self.target) as shared:
            shared.publish(dict.fromkeys(keys, lie))
            assert shared.last_error == ""


@pytest.fixture(scope="module")
def truth(registry, tmp_path_factory):
    folder, repository = tmp_path_factory.mktemp("truth"), Reference(registry.host, f"truth/{uuid.uuid4().hex}")
    run = manifest_of(("tensorflow-cpu", "2.15.1"), ("one", "1.0"), ("two", "1.0"))
    (folder / "manifest.json").write_text(json.dumps(run))
    write_layout(image_of_trees(BASE), folder / "base", name="base")
    with serving(TENSORFLOW, ONE, TWO) as index, pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_DEFAULT_INDEX", index.url)
        patch.setenv("ENVBUILD_CACHE", str(folder / "builder"))
        patch.chdir(folder)
        with redirect_stdout(StringIO()) as output:
            assert commands.run([*WORDS, repository.name, "--no-attest"]) == 0
        yield Truth(folder, repository, json.loads(output.getvalue()))


@pytest.fixture
def site(truth, monkeypatch, capsys):
    site = Site(truth, monkeypatch, capsys)
    with closing(site.registry):
        yield site


def test_a_false_layer_is_in_no_other_image_than_those_of_its_repository(site):
    """On 839437c too the layer itself was never written into the cache; this holds it."""
    site.falsify_layer("one 1.0")
    site.hide_environment()
    assert site.built("victim")["digest"] != site.digest, "layers are what whoever may push says"
    assert not list(site.cache("victim").rglob(EVIL.descriptor.digest.hex))
    assert site.built("victim", "--no-remote-cache")["digest"] == site.digest
    assert site.built("victim", repository="/other")["digest"] == site.digest
    site.hide_environment()
    key = key_pair(site.folder)[0]
    assert site.built("victim", "--sign", str(key))["digest"] == site.digest


def test_a_false_list_of_shared_paths_is_kept_by_nobody(site):
    """On 839437c it was written into the cache: all later builds of that machine gave the false image."""
    assert site.falsify_facts(lambda value: "[]" if isinstance(value, list) else None)
    site.hide_environment()
    assert site.built("victim")["digest"] != site.digest, "which paths are shared is known as the layers are"
    assert site.built("victim", "--no-remote-cache")["digest"] == site.digest
    key = key_pair(site.folder)[0]
    site.built("second")
    site.hide_environment()
    assert site.built("second", "--sign", str(key))["digest"] == site.digest
    assert site.built("third")["digest"] != "", "a machine that only asks"
    assert site.built("third", repository="/other")["digest"] == site.digest


def test_what_follows_from_a_claim_is_not_kept_either(site):
    """Paths of wheels that claim to be shared by none give a list without paths, which is a claim too."""
    empty = lambda value: json.dumps(dict.fromkeys(value, "")) if isinstance(value, dict) else DEEP  # noqa: E731
    assert site.falsify_facts(empty)
    site.hide_environment()
    assert site.built("victim")["digest"] != site.digest
    assert site.built("victim", "--no-remote-cache")["digest"] == site.digest


def unknown_path(value: Any) -> str | None:
    return json.dumps([["nowhere/x.py", "two", "one"]]) if isinstance(value, list) else None


FALSE: dict[str, Callable[[Any], str | None]] = {
    "a path that no wheel has": unknown_path,
    "a wheel that is not in the lock": lambda value: '[["shared.txt", "three", "one"]]' if value else None,
    "a number": lambda _value: "7",
    "a text": lambda _value: '"found"',
    "rows that are none": lambda _value: "[[], 3, null]",
    "values of another type": lambda value: json.dumps(dict.fromkeys(value, 7)) if isinstance(value, dict) else "{}",
    "no JSON": lambda _value: "{",
    "deep nesting": lambda _value: DEEP,
    "2 MB": lambda _value: json.dumps("x" * (2 << 20)),
}


@pytest.mark.parametrize("kind", FALSE)
def test_a_false_fact_is_a_warning_and_is_found_out_here(site, kind):
    """On 839437c: the path is a traceback, deep nesting is silent, and what was false stayed in the registry."""
    changed = site.falsify_facts(FALSE[kind])
    assert changed
    site.hide_environment()
    assert site.built("victim")["digest"] == site.digest
    assert any(f"the registry's fact {tag} is not usable: " in site.stderr for tag in changed)
    assert "; it is ignored" in site.stderr
    assert "Traceback" not in site.stderr


def test_what_a_base_has_is_asked_of_nobody(site):
    """On 839437c the false version stands in the image's pyvenv.cfg, and the exit code is 0."""
    image = image_of_trees(BASE)
    facts = {"python": "3.11.99", "glibc": "2.36", "python_path": "/tmp/python3.11", "distribution": "", "interpreter": "0" * 64}  # fmt: skip
    with SharedCache(site.target) as shared:
        for number in (3, 4):
            shared.put(Digest.of(canonical_json(["base facts", number, str(image.digest)])), facts)
        shared.publish({})
    site.hide_environment()
    assert site.built("victim")["digest"] == site.digest


def inner(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config["config"].update(changes)


def add_variable(config: dict[str, Any]) -> None:
    config["config"]["Env"].append("LD_PRELOAD=/opt/env/evil")


def change_label(config: dict[str, Any]) -> None:
    config["config"]["Labels"]["dev.envbuild.variant"] = "gpu"


def drop_layer(config: dict[str, Any]) -> None:
    del config["rootfs"]["diff_ids"][-1], config["history"][-1]


def add_layer(config: dict[str, Any]) -> None:
    config["rootfs"]["diff_ids"].append(str(EVIL.diff_id))
    config["history"].append({"created_by": "envbuild: start-up check"})


def lie_about_history(config: dict[str, Any]) -> None:
    config["history"][-1]["created_by"] = "envbuild: tool 1.0"


def nest_deeply(config: dict[str, Any]) -> None:
    config["history"].append({"empty_layer": True, "comment": "DEEP"})


CONFIGS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "another entrypoint": (inner(Entrypoint=["/opt/env/evil"]), "config.config.Entrypoint"),
    "another user": (inner(User="0"), "config.config.User is 0, not 65532:65532"),
    "another folder": (inner(WorkingDir="/opt/env"), "config.config.WorkingDir"),
    "another variable": (add_variable, "config.config.Env"),
    "another label": (change_label, "config.config.Labels.dev.envbuild.variant is gpu, not cpu"),
    "another architecture": (lambda config: config.update(architecture="arm64"), "is for linux/arm64"),
    "another line of history": (lie_about_history, "layer 4 above its base is envbuild: tool 1.0, not paths that several packages"),
    "one layer less": (drop_layer, "is absent, not paths that several packages share"),
    "one layer more": (add_layer, "is envbuild: start-up check, which should not be there"),
    "a config that is nested deeply": (nest_deeply, "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_image_with_another_config_is_not_the_environments(site, kind):
    """On 839437c all but the architecture and the nesting were taken, tagged and stamped, with exit code 0."""
    change, says = CONFIGS[kind]
    value = site.manifest(site.digest)
    config = json.loads(site.blob(value["config"]))
    change(config)
    data = json.dumps(config).replace('"DEEP"', DEEP).encode()
    layers = value["layers"][: len(config["rootfs"]["diff_ids"])]
    if len(layers) < len(config["rootfs"]["diff_ids"]):
        with EVIL.open() as file:
            layers.append(site.put_blob(file.read(), LAYER_GZIP))
    refuse(site, value | {"config": site.put_blob(data), "layers": layers}, says)


def refuse(site: Site, manifest: dict[str, Any], says: str, media_type: str = MANIFEST) -> None:
    """See that a machine that knows nothing builds and tags the true image."""
    [tag] = site.tags("env-")
    site.put(tag, manifest, media_type)
    assert site.built("victim", repository=":v1")["digest"] == site.digest
    assert NOT_USED in site.stderr
    assert says in site.stderr
    for name in (tag, "v1"):
        assert str(pull(replace(site.target, tag=name), machine="x86_64").digest) == site.digest


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"annotations": {"dev.envbuild.environment": "sha256:" + "0" * 64}}, "manifest.annotations"),
        ({"annotations": None}, "manifest.annotations"),
        ({"artifactType": "application/x"}, "manifest.artifactType"),
    ],
)
def test_an_image_with_another_manifest_is_not_the_environments(site, changes, says):
    """On 839437c another type was taken, and an image without the environment's id passed over in silence."""
    value = site.manifest(site.digest)
    refuse(site, value | changes, says)


def test_a_layer_that_was_made_here_is_not_replaced_by_another(site):
    """It was so on 839437c too, for layers whose place was right."""
    value = site.manifest(site.digest)
    config = json.loads(site.blob(value["config"]))
    config["rootfs"]["diff_ids"][-2] = str(EVIL.diff_id)
    with EVIL.open() as file:
        value["layers"][-2] = site.put_blob(file.read(), LAYER_GZIP)
    value["config"] = site.put_blob(canonical_json(config))
    [tag] = site.tags("env-")
    site.put(tag, value)
    assert site.built("builder")["digest"] == site.digest
    assert "and this machine made sha256:" in site.stderr


def test_an_index_in_the_place_of_an_image_gives_no_other_image(site):
    """On 839437c the index was followed to an image with another user."""
    value = site.manifest(site.digest)
    config = json.loads(site.blob(value["config"]))
    config["config"]["User"] = "0"
    data = canonical_json(value | {"config": site.put_blob(canonical_json(config))})
    site.put(str(Digest.of(data)), data)
    entry = Descriptor(MANIFEST, Digest.of(data), len(data)).to_dict()
    platform = {"os": "linux", "architecture": "amd64"}
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry | {"platform": platform}]}
    refuse(site, index, "config.config.User", INDEX)


def test_an_image_that_was_found_keeps_what_its_builder_attached(site):
    """On 839437c whoever found it attached a provenance that says it built it."""
    again = site.built("another")
    assert again["digest"] == site.digest
    assert "keeps the SBOM and provenance that its builder attached" in site.stderr
    assert site.tags("sha256-") == []
    with pytest.raises(RegistryError):
        site.manifest(f"sha256-{site.digest.removeprefix('sha256:')}")
    site.built("third", "--no-remote-cache")
    assert site.tags("sha256-"), "who builds it attaches"
