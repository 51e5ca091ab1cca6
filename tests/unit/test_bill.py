"""The bill of an image that is put together of wheels and a Debian base: what it names, and that no machine matters."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any, BinaryIO

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from envbuild.attest.bill import bill_of_materials
from envbuild.attest.components import spdx_name
from envbuild.attest.parts import Parts, read_parts
from envbuild.base.contents import read_contents
from envbuild.base.resolve import inspect, known_facts
from envbuild.errors import BaseError
from envbuild.image.rebase import base_below
from envbuild.lock.metadata import Person, read_metadata
from envbuild.lock.model import LockedWheel
from envbuild.lock.settings import IndexSettings
from envbuild.manifest.reader import read_manifest
from envbuild.oci import rootfs
from envbuild.oci.digest import Digest
from envbuild.oci.image import Image
from envbuild.oci.reference import Reference
from envbuild.oci.rootfs import read_tree
from envbuild.registry.pull import pull
from envbuild.registry.push import push
from tests.fakes.index import FakeIndex, serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.reporting import Recorder
from tests.unit.attesting import facts_of, lock_of
from tests.unit.paged import manifest_of

VENDORED = "Metadata-Version: 2.1\nName: zipp\nVersion: 3.19.2\nLicense: MIT\nAuthor: Jason\n"
METADATA = """Metadata-Version: 2.4
Name: Big_Tool
Version: 2.0
License-Expression: Apache-2.0 OR MIT
Author-email: Ann <ann@example.com>, Bob <bob@example.com>
Maintainer: Acme
Requires-Dist: small[fast]>=1
Requires-Dist: small>=1; sys_platform == "linux"
Requires-Dist: absent; python_version < "3"
Requires-Dist: other; sys_platform == "win32"
"""
BIG = make_wheel(
    "big_tool",
    "2.0",
    {
        "big_tool/__init__.py": "",
        "big_tool/_vendor/zipp-3.19.2.dist-info/METADATA": VENDORED,
        "big_tool/_vendor/nameless-1.dist-info/METADATA": "Metadata-Version: 2.1\n",
    },
    dist_info={"METADATA": METADATA, "sboms/openblas.cdx.json": "{}"},
)
SMALL = make_wheel("small", "1.0", requires=["quick; extra == 'fast'", "other; extra == 'slow'"])
QUICK, OTHER = make_wheel("quick", "1.0", requires=["small"]), make_wheel("other", "1.0")
WHEELS = (BIG, SMALL, QUICK, OTHER)
DOCUMENT = "big_tool-2.0.dist-info/sboms/openblas.cdx.json"
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Maintainer: GNU Libc Maintainers <debian-glibc@lists.debian.org>
Source: glibc (2.36-9)
Version: 2.36-9+deb12u10

Package: mawk
Status: install ok installed
Architecture: amd64
Version: 1.3.4
Provides: awk
Depends: libc6 (>= 2.14) | libc6.1, absent

Package: base-files
Status: install ok installed
Architecture: all
Version: 12.4
Pre-Depends: awk, zlib1g

Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.12

Package: gone
Status: deinstall ok config-files
Version: 1
"""
COPYRIGHT = b"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
License: LGPL-2.1+ and GPL-3

License: public-domain
 No rights.
"""
DEBIAN = BASE | {
    "etc/os-release": b'PRETTY_NAME="Debian 12"\nID=debian\nVERSION_ID="12"\n',
    "var/lib/dpkg/status": STATUS.encode(),
    "usr/share/doc/libc6/copyright": COPYRIGHT,
    "usr/share/doc/mawk/copyright": b"On Debian systems, see /usr/share/common-licenses/GPL-2.\nLicense: By me\n",
    "usr/lib/python3/dist-packages/own.egg-info": b"Metadata-Version: 1.0\nName: own\nVersion: 1\nLicense: UNKNOWN\n",
    "opt/envy/pip-23.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: pip\nVersion: 23.0\n",
}
IMAGE = image_of_trees(DEBIAN)


def locked(wheel: FakeWheel, index: FakeIndex) -> LockedWheel:
    name, version = wheel.filename.split("-")[:2]
    return LockedWheel(
        name=name.replace("_", "-"),
        version=version,
        filename=wheel.filename,
        sha256=Digest(wheel.sha256),
        size=len(wheel.data),
        url=index.file_url(wheel.filename),
    )


@pytest.fixture
def index():
    with serving(*WHEELS) as index:
        yield index


@pytest.fixture
def make(index, tmp_path) -> Callable[..., bytes]:
    """Make the bill of the wheels, and of `more`, on a base."""
    with FakeRegistry() as fake:
        facts = facts_of(fake.host)

    def make(
        cache: str = "cache",
        base: Image | None = IMAGE,
        said: Recorder | None = None,
        more: Sequence[FakeWheel] = (),
        **changes: Any,
    ) -> bytes:
        settings = IndexSettings(default=None, offline=changes.pop("offline", False))
        wheels = tuple(locked(it, index) for it in (*WHEELS, *more))
        index.files.update({it.filename: it.data for it in more})
        read: Callable[[], Parts] = partial(
            read_parts,
            base,
            wheels,
            settings,
            tmp_path / cache,
            said or Recorder(),
            proven=changes.pop("proven", False),
        )
        changed = replace(facts, locks=(lock_of(*wheels),), read_parts=read, base_name="debian:bookworm")
        bill = bill_of_materials(
            replace(changed, reference=replace(changed.reference, registry="r.example"), **changes)
        )
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill.decode()) is None
        assert len(by_reference(bill)) == len(json.loads(bill)["components"]), "references are unique"
        return bill

    return make


def by_reference(bill: bytes) -> dict[str, Any]:
    return {it["bom-ref"]: it for it in json.loads(bill)["components"]}


def requires(bill: bytes, reference: str) -> list[str]:
    found = {it["ref"]: it.get("dependsOn", []) for it in json.loads(bill)["dependencies"]}
    return found[reference]


def test_a_wheel_says_who_made_it_under_which_licence_and_what_it_carries(make):
    big = by_reference(make())["pkg:pypi/big-tool@2.0"]
    assert big["licenses"] == [{"expression": "Apache-2.0 OR MIT"}]
    assert big["supplier"] == {"name": "Acme"}
    assert [it["name"] for it in big["authors"]] == ["Ann", "Bob"]
    assert big["hashes"][0]["content"] == BIG.sha256
    [vendored] = big["components"]
    assert (vendored["purl"], vendored["licenses"]) == ("pkg:pypi/zipp@3.19.2", [{"license": {"id": "MIT"}}])
    [document] = big["externalReferences"]
    assert (document["type"], document["url"]) == ("bom", f"opt/env/lib/python3.11/site-packages/{DOCUMENT}")
    assert document["hashes"] == [{"alg": "SHA-256", "content": Digest.of(b"{}").hex}]


def test_a_wheel_requires_what_its_markers_say_with_the_extras_that_others_name(make):
    bill = make()
    vendored = "pkg:pypi/big-tool@2.0#big_tool/_vendor/zipp-3.19.2.dist-info"
    assert requires(bill, "pkg:pypi/big-tool@2.0") == [vendored, "pkg:pypi/small@1.0"]
    assert requires(bill, "pkg:pypi/small@1.0") == ["pkg:pypi/quick@1.0"]
    assert requires(bill, "pkg:pypi/quick@1.0") == ["pkg:pypi/small@1.0"]
    assert requires(bill, "pkg:pypi/other@1.0") == []


def test_the_base_is_its_distribution_and_its_packages(make):
    bill = make()
    found = by_reference(bill)
    assert (found["base"]["name"], found["os"]["name"], found["os"]["version"]) == ("debian:bookworm", "debian", "12")
    libc = "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc@2.36-9"
    [libc6] = [it for it in found.values() if it["name"] == "libc6"]
    assert libc6["purl"].replace("%40", "@") == libc
    assert libc6["supplier"] == {"name": "GNU Libc Maintainers"}
    names = [it["license"].get("id") or it["license"]["name"] for it in libc6["licenses"]]
    assert sorted(names) == ["GPL-3.0-only", "LGPL-2.1-or-later", "public-domain"]
    [mawk] = [it for it in found.values() if it["name"] == "mawk"]
    assert mawk["licenses"] == [{"license": {"id": "GPL-2.0-only"}}]
    assert requires(bill, mawk["bom-ref"]) == [libc6["bom-ref"]]
    [files] = [it["bom-ref"] for it in found.values() if it["name"] == "base-files"]
    [zlib] = [it for it in found if "zlib1g" in it]
    assert requires(bill, files) == [mawk["bom-ref"], zlib]
    assert {"os", libc6["bom-ref"], "base#opt/envy/pip-23.0.dist-info"} <= set(requires(bill, "base"))
    assert found["base#usr/lib/python3/dist-packages/own.egg-info"]["purl"] == "pkg:pypi/own@1"
    assert "gone" not in {it["name"] for it in found.values()}


def test_a_package_that_the_lock_adds_takes_the_place_of_the_base_s(make):
    [zlib] = [it for it in by_reference(make()).values() if it["name"] == "zlib1g"]
    assert zlib["purl"] == "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1?arch=amd64&distro=debian-12"
    assert zlib["hashes"] == [{"alg": "SHA-256", "content": Digest.of(b"zlib").hex}]


def test_the_bill_says_what_nobody_looked_at(make):
    bill = make(proven=True)
    said = json.loads(bill)["compositions"]
    assert [it["aggregate"] for it in said] == ["incomplete", "incomplete", "complete", "unknown"]
    assert "pkg:pypi/big-tool@2.0" in said[2]["dependencies"]
    assert {"model", "python"} <= set(said[3]["dependencies"])
    everything = {"image", *by_reference(bill), *requires(bill, "pkg:pypi/big-tool@2.0")}
    assert {one for it in said for one in (*it.get("assemblies", ()), *it.get("dependencies", ()))} <= everything
    assert json.loads(make(base=image_of_trees(BASE)))["compositions"][1]["aggregate"] == "unknown"


def test_the_bill_is_the_same_wherever_the_wheels_are_read(make, index):
    by_ranges = make("one")
    assert make("one") == by_ranges, "and from the cache"
    index.ranges = False
    index.requests.clear()
    whole = make("other")
    for part in ("components", "dependencies"):
        assert json.loads(whole)[part] == json.loads(by_ranges)[part], "and of whole files"
    assert [it.path for it in index.requests if it.path.endswith(BIG.filename)]
    index.requests.clear()
    assert make("other", offline=True) == whole, "and without a network"
    assert index.requests == []
    proven = make("other", proven=True)
    assert json.loads(proven)["components"] == json.loads(whole)["components"]
    assert make("other") == make("other", proven=True, offline=True) == proven, "and of the cache's wheels"


def test_what_only_an_index_says_is_not_called_complete_and_is_never_signed(make, index):
    said = json.loads(make())["compositions"]
    assert [it["aggregate"] for it in said] == ["incomplete", "incomplete", "unknown"]
    assert "pkg:pypi/big-tool@2.0" in said[2]["dependencies"]
    index.files[BIG.filename] = make_wheel("big_tool", "2.0", {"x.py": ""}).data
    warned = Recorder()
    bill = make(proven=True, said=warned)
    assert "licenses" not in by_reference(bill)["pkg:pypi/big-tool@2.0"]
    assert "the hash of big_tool-2.0-py3-none-any.whl does not match" in warned.warnings[0]
    assert "pkg:pypi/big-tool@2.0" in json.loads(bill)["compositions"][-1]["dependencies"]


ODD = """Metadata-Version: 2.4
Name: odd
Version: 1
License: BSD
Classifier: License ::\x20
Classifier: License :: OSI Approved :: MIT License
Requires-Dist: small; python_version ~= 'x'
Requires-Dist: quick; {}os_name == "posix"{}
""".format("(" * 3000, ")" * 3000)


def test_a_wheel_may_say_anything(make):
    files = {
        "odd/_vendor/a-1.dist-info/METADATA": "Name: /\nVersion: 1\n",
        "odd/_vendor/b-1.dist-info/METADATA": "Name: b\nVersion: /\nClassifier: License :: \nClassifier: License :: x",
    }
    documents = {"sboms/%zz é.json": "{}", "sboms/#a#.json": "{}", "sboms/sub/": "", "sboms/sub/b.json": "{}"}
    odd = make_wheel("odd", "1", files, dist_info={"METADATA": ODD, **documents})
    bill = make(more=[odd])
    found = by_reference(bill)["pkg:pypi/odd@1"]
    [vendored] = found["components"]
    assert (vendored["name"], vendored["licenses"]) == ("b", [{"license": {"name": "x"}}])
    site = "opt/env/lib/python3.11/site-packages/odd-1.dist-info/sboms"
    names = [it["url"].removeprefix(f"{site}/") for it in found["externalReferences"]]
    assert names == ["%23a%23.json", "%25zz%20%C3%A9.json", "sub/b.json"]
    assert requires(bill, "pkg:pypi/odd@1") == [vendored["bom-ref"], "pkg:pypi/small@1.0"]


def test_what_two_locks_have_is_there_once(make, index):
    both, elsewhere = locked(SMALL, index), replace(locked(SMALL, index), url="https://elsewhere.example/small.whl")
    bill = make(locks=(lock_of(both), lock_of(elsewhere)))
    assert [it for it in by_reference(bill) if "small" in it] == ["pkg:pypi/small@1.0"]


def test_a_base_may_say_anything(make):
    odd = b"Package: /\nVersion: 1\n\nPackage: twice\nVersion: 1\n\nPackage: twice\nVersion: 1\nMaintainer: Me\n"
    people = b"Name: odd\nVersion: 1\nAuthor-email: " + b"(" * 5000 + b"\n"
    base = image_of_trees(
        BASE | {"var/lib/dpkg/status": odd, "usr/lib/odd.egg-info": people, "usr/copy.egg-info": b"Name: /"}
    )
    bill = make(base=base)
    assert [it["bom-ref"] for it in by_reference(bill).values() if it["name"] == "twice"] == ["pkg:deb/debian/twice@1"]
    found = [it for it in requires(bill, "base") if "zlib" not in it]
    assert found == ["base#usr/lib/odd.egg-info", "pkg:deb/debian/twice@1"]


def test_a_base_that_cannot_be_read_is_told_of_and_is_an_error_of_a_signed_bill(make):
    broken = replace(IMAGE, layers=tuple(replace(it, open=partial(BytesIO, b"no gzip")) for it in IMAGE.layers))
    said = Recorder()
    bill = make(base=broken, said=said)
    [warning] = said.warnings
    assert warning.startswith("the SBOM has nothing of what the base contains: layer sha256:")
    assert json.loads(bill)["compositions"][1]["aggregate"] == "unknown"
    assert by_reference(make(base=None)) == by_reference(bill)
    with pytest.raises(BaseError, match="cannot be read"):
        make(base=broken, proven=True)


def test_wheels_without_a_name_inside_are_told_of(make):
    said = Recorder()
    make(more=[make_wheel("odd", "1", dist_info={"METADATA": "Summary: none\n"})], said=said)
    [warning] = said.warnings
    assert warning.endswith(
        "1 wheel, such as odd-1-py3-none-any.whl, which cannot be read: they have no METADATA that says what they are"
    )


def test_of_a_base_a_limited_number_of_bytes_is_kept(monkeypatch):
    files = {f"usr/share/doc/{it}/copyright": b"a" * 1000 for it in range(9)} | {
        "usr/share/doc/x/copyright": b"a" * 1001
    }
    monkeypatch.setattr(rootfs, "_LONGEST_KEPT", 1000)
    monkeypatch.setattr(rootfs, "_MOST_KEPT", 5500)
    kept = [
        len(it.content) for it in read_tree(image_of_trees(files, {"var/lib/dpkg/status": b"b" * 400}), "x").values()
    ]
    assert sorted(kept)[-7:] == [0, 400, 1000, 1000, 1000, 1000, 1000]
    monkeypatch.setattr(rootfs, "_MOST_KEPT", 99_999)
    long = {"var/lib/dpkg/status": b"b" * 4000}
    assert [len(it.content) for it in read_tree(image_of_trees(files, long), "x").values()].count(1000) == 9
    assert read_tree(image_of_trees(files, long), "x")["usr/share/doc/x/copyright"].content == b""
    assert len(read_tree(image_of_trees(files, long), "x")["var/lib/dpkg/status"].content) == 4000


def test_wheels_that_cannot_be_read_have_their_digests_and_are_told_of(make, index):
    index.files.clear()
    said = Recorder()
    bill = make(said=said)
    big = by_reference(bill)["pkg:pypi/big-tool@2.0"]
    assert (big["hashes"][0]["content"], "licenses" in big) == (BIG.sha256, False)
    [warning] = said.warnings
    assert "only name, version and digest of 4 wheels, such as big_tool-2.0-py3-none-any.whl" in warning
    assert [it["aggregate"] for it in json.loads(bill)["compositions"]] == ["incomplete", "incomplete", "unknown"]
    assert make("empty", offline=True, said=said) == bill
    assert said.warnings[1].endswith("--offline forbids to fetch them")


def refuse() -> BinaryIO:
    raise AssertionError("a layer is read")


def test_a_base_is_read_once_for_its_facts_and_its_packages(make, tmp_path):
    inspect(IMAGE, "a base", "x86_64", known_facts(tmp_path / "cache"))
    unreadable = replace(IMAGE, layers=tuple(replace(it, open=refuse) for it in IMAGE.layers))
    assert make(base=unreadable) == make("afresh")


def test_a_distroless_base_has_a_file_for_each_package(tmp_path):
    stanza = b"Package: tzdata\nVersion: 2026a-0+deb12u1\nArchitecture: all\n"
    base = image_of_trees({"var/lib/dpkg/status.d/tzdata": stanza, "var/lib/dpkg/status.d/tzdata.md5sums": b"x  y\n"})
    assert [it.name for it in read_contents(base, "a base", tmp_path).packages] == ["tzdata"]


def test_the_model_has_the_data_of_its_run_and_the_types_of_its_golden_sample(make):
    data = [{"uri": "gs://user@acme/train.csv"}, {"uri": "/home/me/extra.csv"}]
    array = {"name": "x", "shape": [1], "data": "AAAAAA=="}
    golden = {"inputs": [array | {"dtype": "float32"}], "outputs": [array | {"dtype": "int32"}], "rtol": 0, "atol": 0}
    value = manifest_of("tensorflow-cpu==2.15.1", contract={"data": data}, golden=golden)
    bill = make(run=read_manifest(json.dumps(value).encode(), "manifest.json"))
    card = by_reference(bill)["model"]["modelCard"]["modelParameters"]
    assert [it["name"] for it in card["datasets"]] == ["gs://acme/train.csv", "extra.csv"]
    assert (card["inputs"], card["outputs"]) == ([{"format": "float32"}], [{"format": "int32"}])


def test_the_base_below_an_image_is_what_envbuild_did_not_make():
    lines = [{"created_by": it} for it in ("apt-get", "envbuild: numpy 1.26.4", "envbuild: start-up check")]
    image = image_of_trees(DEBIAN, {"a": b"1"}, {"b": b"2"}, history=lines)
    below = base_below(image)
    assert below
    assert below.layers == image.layers[:1]
    assert base_below(IMAGE) is None, "an engine built it"


def test_another_machine_reads_the_base_of_a_pushed_image_from_the_registry(tmp_path):
    lines = [{"created_by": it} for it in ("apt-get", "envbuild: numpy 1.26.4")]
    image = image_of_trees(DEBIAN, {"opt/env/numpy-1.26.4.dist-info/METADATA": b"Name: numpy\n"}, history=lines)
    with FakeRegistry() as fake:
        pulled = pull(push(image, Reference(fake.host, "team/app", "v1")).reference, machine="x86_64")
        below = base_below(pulled)
        assert below
        found = read_contents(below, "the base", tmp_path)
        read = [it.path.rpartition("/")[2] for it in fake.requests if it.method == "GET" and "/blobs/" in it.path]
    assert [it.name for it in found.packages] == ["base-files", "libc6", "mawk", "zlib1g"]
    assert read == [str(image.config_digest), str(image.layers[0].descriptor.digest)]
    assert found == read_contents(IMAGE, "the base", tmp_path / "elsewhere")


@pytest.mark.parametrize(
    ("lines", "licenses"),
    [
        ("License: BSD\nClassifier: License :: OSI Approved :: MIT License", ("BSD",)),
        ("License: Copyright (c) me\n        All rights\nClassifier: License :: OSI Approved :: MIT License", ("MIT",)),
        ("License: Copyright (c) me\n        All rights", ("Copyright (c) me",)),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved", ()),
        ("Classifier: License :: OSI Approved :: BSD License", ("BSD License",)),
        ("License-Expression: MIT\nLicense: old", ("MIT",)),
        ("Summary: nothing", ()),
    ],
)
def test_a_licence_is_what_metadata_declares(lines, licenses):
    found = read_metadata(f"Metadata-Version: 2.4\nName: a\nVersion: 1\n{lines}\n", "a-1.dist-info")
    assert found
    assert found.licenses == licenses


@pytest.mark.parametrize(
    ("lines", "authors", "supplier"),
    [
        ("Author: Ann", [Person(name="Ann")], "Ann"),
        ("Author: Ann\nAuthor-email: ann@example.com", [Person(name="Ann", email="ann@example.com")], "Ann"),
        ("Author-email: ann@example.com", [Person(email="ann@example.com")], "ann@example.com"),
        ("Author: UNKNOWN\nMaintainer-email: Acme <ml@example.com>", [], "Acme"),
        ("Author: " + "x" * 500, [], ""),
        (
            'Author-email: "Ann, B" <a@x.example>, b@x.example (Bob), none, , c@x.example ,"<d" <d@x.example>',
            [
                Person(name="Ann, B", email="a@x.example"),
                Person(name="Bob", email="b@x.example"),
                Person(email="c@x.example"),
                Person(name="<d", email="d@x.example"),
            ],
            "Ann, B",
        ),
        *[(f"Author-email: {it * 100_000}", [], "") for it in ("(", "<", '"a,', "@", "a@", "\\")],
    ],
)
def test_people_are_those_of_metadata(lines, authors, supplier):
    found = read_metadata(f"Metadata-Version: 2.4\nName: a\nVersion: 1\n{lines}\n", "a-1.dist-info")
    assert found
    assert (list(found.authors), found.supplier) == (authors, supplier)


@pytest.mark.parametrize(
    ("name", "spdx"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("LGPL-2.1", "LGPL-2.1-only"),
        ("Expat", "MIT"),
        ("BSD-3-clause", "BSD-3-Clause"),
        ("Apache-2", "Apache-2.0"),
        ("Apache 2.0", "Apache-2.0"),
        ("GPL-9", "GPL-9"),
        ("public-domain", "public-domain"),
    ],
)
def test_licences_have_the_names_of_spdx_where_it_has_them(name, spdx):
    assert spdx_name(name) == spdx


def test_a_hostile_metadata_file_is_no_distribution():
    assert read_metadata("\0\0", "x.dist-info") is None
    assert read_metadata(f"Name: {'x' * 999}\nVersion: 1\n", "x.dist-info") is None
