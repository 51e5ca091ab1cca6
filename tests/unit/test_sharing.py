"""The proof that serving has training's environment: images of a few files, planted differences, and no false alarm."""

import _imp
import io
from dataclasses import replace

import pytest

from envbuild.errors import BuildError, RegistryError
from envbuild.oci.image import LAYER_ZSTD, MANIFEST, Image, Layer, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.verify.findings import Finding
from envbuild.verify.sharing import other_distributions, prove_sharing, stands_on
from tests.fakes.registry import FakeRegistry
from tests.fakes.wheels import record_line
from tests.unit.comparing import SITE, Put, file, folder, gone, image, layer, link, opaque

BASE = (
    file("usr/bin/python3.11", b"python"),
    file("usr/lib/python3.11/os.py", b"os"),
    file("usr/lib/x86_64-linux-gnu/libm.so.6", b"libm"),
    file("var/lib/dpkg/status", b"Package: libc6\nStatus: install ok installed\nVersion: 2.36-9\n\n"),
    file("var/lib/dpkg/info/libc6.list", b"/usr/lib/x86_64-linux-gnu/libm.so.6\n"),
    file("var/log/dpkg.log", b"monday"),
    link("opt/env/bin/python", "/usr/bin/python3.11"),
)
NEWER = tuple(
    replace(it, content=it.content.replace(b"2.36-9", b"2.36-10").replace(b"libm", b"newer")) if "x86" in it.path or "status" in it.path else it
    for it in BASE
)  # fmt: skip


def package(name: str, version: str, *, site: str = SITE, **files: bytes) -> tuple[Put, ...]:
    """A distribution as an installer leaves it."""
    info, found = f"{name}-{version}.dist-info", {f"{name}/{path}.py": data for path, data in files.items()}
    found = found or {f"{name}/__init__.py": f"version = {version!r}".encode()}
    found[f"{info}/METADATA"] = f"Name: {name}\nVersion: {version}\n".encode()
    record = "".join(f"{record_line(path, data)}\n" for path, data in found.items()) + f"{info}/RECORD,,\n"
    return tuple(file(f"{site}/{path}", data) for path, data in (found | {f"{info}/RECORD": record.encode()}).items())


NUMPY, SIX = package("numpy", "1.26.4"), package("six", "1.17.0")
TRAIN = image(BASE, NUMPY, SIX)
APP = (file("app/serve.py", b"import numpy"), file("srv/model/weights"))


def proof(serve: Image, train: Image = TRAIN) -> dict[str, Finding]:
    """The findings, by what they are about."""
    found = prove_sharing(train, serve, lambda *_: None)
    assert len({it.about for it in found}) == len(found)
    return {it.about: it for it in found}


def agreeing(found: dict[str, Finding]) -> bool:
    return all(it.agrees for it in found.values())


def unreadable(of: Image, count: int) -> Image:
    """The image, whose first layers nobody may read."""

    def refuse() -> io.BytesIO:
        raise AssertionError("this layer need not be read")

    return replace(of, layers=tuple(replace(it, open=refuse) if n < count else it for n, it in enumerate(of.layers)))


def test_the_same_layers_are_proved_without_reading_one():
    found = proof(unreadable(TRAIN, 9), unreadable(TRAIN, 9))
    assert [str(it) for it in found.values()] == ["ok       layers: serving has training's 3 layers, and no other"]


def with_second(of: Image, second: Layer) -> Image:
    """The image whose second layer is another blob, by a config that stays."""
    return replace(of, layers=(of.layers[0], second, *of.layers[2:]))


@pytest.mark.parametrize("top", [(), (APP,)])
def test_a_config_that_names_trainings_diff_id_for_another_layer_is_found_out(top):
    serve = image(BASE, NUMPY, SIX, *top)
    lie = with_second(
        serve, replace(layer(file(f"{SITE}/numpy/__init__.py", b"evil")), diff_id=TRAIN.layers[1].diff_id)
    )
    for ask in (lambda: proof(lie), lambda: stands_on(TRAIN, lie, "lie:1", lambda *_: None)):
        with pytest.raises(BuildError, match="does not match the diff id"):
            ask()


def test_of_trainings_layers_only_those_that_were_recompressed_are_read():
    serve = with_second(unreadable(image(BASE, NUMPY, SIX, APP), 3), layer(*NUMPY, media_type=LAYER_ZSTD))
    assert serve.layers[1].diff_id == TRAIN.layers[1].diff_id
    assert agreeing(proof(serve, unreadable(TRAIN, 9)))
    assert stands_on(TRAIN, serve, "serve:1", lambda *_: None)


def test_of_layers_on_top_those_that_are_proven_are_not_read():
    serve = image(BASE, NUMPY, SIX, package("web", "1.0"), APP)
    web, app = (it.descriptor.digest for it in serve.layers[3:])
    found = prove_sharing(TRAIN, unreadable(serve, 4), lambda *_: None, {web}, ["web 1.0"])
    assert [it.agrees for it in found] == [True, True]
    assert found[1].packages == ("web 1.0",)
    with pytest.raises(AssertionError):
        prove_sharing(TRAIN, unreadable(serve, 4), lambda *_: None, {app})


def test_debian_packages_of_a_history_are_no_distributions():
    def having(packages: str, numpy: str) -> Image:
        lines = [f"envbuild: system packages: {packages}", f"envbuild: numpy {numpy}, six 1.17.0"]
        return image((), (), history=[{"created_by": it} for it in lines])

    old, new = "libgomp1 12.2.0-14, libquadmath0 12.2.0-14", "libgomp1 12.2.0-15, libquadmath0 12.2.0-15"
    assert other_distributions(having(old, "1.26.4"), having(new, "1.26.4")) == ()
    assert other_distributions(having(old, "1.26.4"), having(old, "2.1.0")) == ("numpy 1.26.4 -> 2.1.0",)


def test_a_program_on_top_is_proved_by_reading_that_layer_alone():
    found = proof(unreadable(image(BASE, NUMPY, SIX, APP), 3), unreadable(TRAIN, 9))
    assert agreeing(found)
    assert found["layers"].says == "serving begins with training's 3 layers"
    assert found["added"].says.startswith("serving adds 1 layer (sha256:")


def test_what_is_added_is_said_as_the_history_has_it():
    serve = image(BASE, NUMPY, SIX, APP)
    empty = {"created_by": "ENV A=1", "empty_layer": True}
    history = [*({"created_by": it} for it in ("base", "numpy", "six")), empty, {"created_by": "COPY serve.py /app"}]
    config = canonical_json({"architecture": "amd64", "os": "linux", "config": {}, "history": history})
    assert proof(replace(serve, config=config))["added"].says == "serving adds 1 layer (COPY serve.py /app)"


def test_a_superset_on_top_agrees_and_is_named():
    found = proof(image(BASE, NUMPY, SIX, package("flask", "3.0.0")))
    assert agreeing(found)
    assert found["added"].packages == ("flask 3.0.0",)
    assert "flask 3.0.0" in found["added"].says


def test_one_moved_pin_is_named_with_both_versions_and_the_layer():
    serve = image(BASE, package("numpy", "1.22.0"), SIX)
    found = proof(serve)
    assert {about for about, it in found.items() if not it.agrees} == {"layers", "numpy"}
    pin, layers = found["numpy"], found["layers"]
    assert (pin.wanted, pin.found, pin.severity) == ("1.26.4", "1.22.0", "error")
    assert pin.packages == ("numpy 1.26.4", "numpy 1.22.0")
    assert pin.says == f"numpy 1.26.4 -> 1.22.0 in layer {serve.layers[1].descriptor.digest}"
    assert pin.says in layers.says
    assert layers.says.startswith("1 of training's 3 layers are serving's, the first other one is sha256:")
    assert (layers.packages, layers.why != "", layers.todo != "") == (("numpy 1.26.4",), True, True)


@pytest.mark.parametrize(
    "top",
    [
        (gone(f"{SITE}/numpy-1.26.4.dist-info"), gone(f"{SITE}/numpy"), *package("numpy", "1.22.0")),
        package("numpy", "1.22.0"),
        package("numpy", "1.22.0", site="app/vendor/site-packages"),
    ],
    ids=["replaced", "over it", "beside it"],
)
def test_a_pin_that_a_layer_on_top_moves_is_found(top):
    serve = image(BASE, NUMPY, SIX, top)
    found = proof(serve)
    assert found["numpy"].found in ("1.22.0", "1.22.0, 1.26.4")
    assert str(serve.layers[3].descriptor.digest) in found["numpy"].says
    assert "a layer on top changes them" in found["layers"].says


@pytest.mark.parametrize("top", [(gone(f"{SITE}/six-1.17.0.dist-info"), gone(f"{SITE}/six")), (opaque("opt/env"),)])
def test_a_package_that_is_removed_is_found(top):
    found = proof(image(BASE, NUMPY, SIX, top))
    assert (found["six"].found, found["six"].says) == ("not there", "six 1.17.0 is missing")


def test_a_file_that_a_layer_on_top_patches_is_found():
    found = proof(image(BASE, NUMPY, SIX, (file(f"{SITE}/numpy/__init__.py", b"import os"),)))
    assert (found["numpy"].wanted, found["numpy"].found) == ("1.26.4", "1.26.4 with other files")


def test_another_build_of_the_same_version_is_found():
    found = proof(image(BASE, package("numpy", "1.26.4", core=b"of a fork"), SIX))
    assert (found["numpy"].agrees, found["numpy"].found) == (False, "1.26.4 with other files")


def test_layers_that_were_built_anew_agree_where_the_files_do():
    """Times, owners, bytecode, installers' marks, scripts and logs are other ones in each build."""

    def later(puts):
        return tuple(replace(it, mtime=99, owner=(7, 7)) for it in puts)

    base = tuple(replace(it, content=b"tuesday") if it.path == "var/log/dpkg.log" else it for it in later(BASE))
    noise = (file(f"{SITE}/__pycache__/six.cpython-311.pyc"), file(f"{SITE}/six-1.17.0.dist-info/INSTALLER", b"uv"))
    serve = image(base, (*later(NUMPY), *later(SIX), *noise))
    found = proof(serve)
    assert agreeing(found), found
    assert found["layers"].says == ("0 of training's 3 layers are serving's, and Python and 2 packages are the same")


def test_a_script_that_another_installer_wrote_is_no_difference():
    def tool(script: bytes) -> tuple[Put, ...]:
        info = f"{SITE}/tool-1.0.dist-info"
        record = f"tool-1.0.dist-info/METADATA,sha256=x,1\n{record_line('../../../bin/tool', script)}\n"
        return file(f"{info}/METADATA"), file(f"{info}/RECORD", record.encode()), file("opt/env/bin/tool", script)

    assert agreeing(proof(image(BASE, tool(b"of uv")), image(BASE, tool(b"of pip"))))


def test_the_very_same_packages_in_another_folder_agree():
    other = "usr/local/lib/python3.11/site-packages"
    moved = [*package("numpy", "1.26.4", site=other), *package("six", "1.17.0", site=other)]
    assert agreeing(proof(image(BASE, moved)))


def test_what_distributions_have_of_others_for_themselves_is_no_package():
    vendored = file(f"{SITE}/flask/_vendor/six-1.0.dist-info/METADATA", b"Name: six\nVersion: 1.0\n")
    assert agreeing(proof(image(BASE, NUMPY, SIX, (*package("flask", "3.0.0"), vendored))))


def test_another_python_is_an_error():
    other = tuple(replace(it, content=b"another") if it.path == "usr/bin/python3.11" else it for it in BASE)
    found = proof(image(other, NUMPY, SIX))
    assert {about for about, it in found.items() if not it.agrees} == {"layers", "python"}
    assert "/usr/bin/python3.11" in found["python"].says


def test_a_loose_file_beside_the_packages_that_is_another_is_an_error():
    train = image(BASE, NUMPY, (file(f"{SITE}/hook.pth", b"import a"),))
    found = proof(image(BASE, NUMPY, (file(f"{SITE}/hook.pth", b"import b"),)), train)
    assert found["site-packages"].severity == "error"
    assert f"/{SITE}/hook.pth" in found["site-packages"].says


def test_another_library_of_the_system_is_a_warning():
    found = proof(image(NEWER, NUMPY, SIX))
    assert {about for about, it in found.items() if not it.agrees} == {"system"}
    assert found["system"].severity == "warning"
    assert "libc6 2.36-9 -> 2.36-10" in found["system"].says


def test_a_layer_that_deletes_what_is_no_environment_agrees():
    train = image(BASE, NUMPY, APP)
    found = proof(image(BASE, NUMPY, APP, (gone("app/serve.py"),)), train)
    assert agreeing(found)
    assert found["layers"].says.startswith("serving begins with training's 3 layers, and Python and")


@pytest.mark.parametrize(
    "top",
    [
        (file("app/venv/lib/python3.11/os.py", b"other"),),
        (file("app/lib/libm.so.6", b"other"),),
        (file("srv/numpy-1.22.0.dist-info/METADATA", b"other"),),
        (opaque("srv"),),
    ],
)
def test_a_layer_that_may_matter_is_not_believed_unread(top):
    train = unreadable(TRAIN, 9)
    with pytest.raises(AssertionError, match="need not be read"):
        proof(unreadable(image(BASE, NUMPY, SIX, top), 3), train)


def test_documentation_of_the_system_that_is_not_there_is_no_difference():
    def documented(*more: Put) -> tuple[Put, ...]:
        return *BASE, *more, file("var/lib/dpkg/info/libc6.list", b"/usr/share/doc/libc6/copyright\n")

    assert agreeing(proof(image(documented(), NUMPY), image(documented(file("usr/share/doc/libc6/copyright")), NUMPY)))


def test_another_pip_is_a_warning():
    train, serve = (image(BASE, NUMPY, package("pip", version)) for version in ("24.0", "25.1"))
    found = proof(serve, train)
    assert [(it.about, it.severity) for it in found.values() if not it.agrees] == [("system", "warning")]


GPU = (
    package("tensorflow", "2.15.1", gpu=b"gpu"),
    (*package("nvidia_cudnn_cu12", "8.9.4.25"), *package("nvidia_cuda_runtime_cu12", "12.2.140"), *package("triton", "3.0.0")),
)  # fmt: skip


def test_the_cpu_sibling_of_a_gpu_image_is_a_warning():
    found = proof(image(BASE, NUMPY, package("tensorflow_cpu", "2.15.1")), image(BASE, NUMPY, *GPU))
    assert [(it.about, it.severity) for it in found.values() if not it.agrees] == [("variant", "warning")]
    assert "tensorflow 2.15.1" in found["variant"].packages
    assert found["layers"].says.endswith("all but what a GPU needs is the same")


def test_a_label_for_the_cpu_is_a_siblings_too():
    train = image(BASE, package("torch", "2.3.1+cu121"), package("torchvision", "0.18.1+cu121"))
    serve = image(BASE, package("torch", "2.3.1+cpu"), package("torchvision", "0.18.1+cpu"))
    assert {about for about, it in proof(serve, train).items() if not it.agrees} == {"variant"}
    assert not proof(train, serve)["torch"].agrees, "training on a CPU has no such siblings"


@pytest.mark.parametrize("other", [package("numpy", "1.22.0"), package("numpy", "1.26.4", core=b"other")])
def test_a_sibling_with_a_moved_pin_is_an_error(other):
    found = proof(image(BASE, other, package("tensorflow_cpu", "2.15.1")), image(BASE, NUMPY, *GPU))
    assert not found["numpy"].agrees
    assert found["numpy"].severity == "error"
    assert not found["layers"].agrees


def test_a_sibling_of_another_release_is_an_error():
    found = proof(image(BASE, NUMPY, package("tensorflow_cpu", "2.14.0")), image(BASE, NUMPY, *GPU))
    assert not found["tensorflow"].agrees
    assert found["tensorflow"].severity == "error"


def test_what_is_read_is_told():
    told = []
    prove_sharing(TRAIN, image(BASE, package("numpy", "1.22.0"), SIX), lambda *it: told.append(it))
    assert {label for label, _, _ in told} == {"reading training's layers", "reading serving's layers"}
    assert all(done <= (total or 0) for _, done, total in told)


def test_each_layer_is_read_once():
    opened = []

    def counting(of: Image) -> Image:
        def opener(it):
            def open_it():
                opened.append(it.diff_id)
                return it.open()

            return open_it

        return replace(of, layers=tuple(replace(it, open=opener(it)) for it in of.layers))

    prove_sharing(counting(TRAIN), counting(image(BASE, package("numpy", "1.22.0"), SIX)), lambda *_: None)
    assert sorted(opened) == sorted({it.diff_id for it in (*TRAIN.layers, layer(*package("numpy", "1.22.0")))})


ENV = ("PATH=/opt/env/bin:/usr/bin",)
STARTED = (*BASE, file("opt/env/pyvenv.cfg", b"home = /usr/bin"), file("usr/bin/make", b"make"))


def started(*layers: tuple[Put, ...], env: tuple[str, ...] = (), folder: str = "/") -> Image:
    """An image with training's layers, whose PATH finds the environment's Python."""
    config = {"Env": [*(ENV if not any(it.startswith("PATH=") for it in env) else ()), *env], "WorkingDir": folder}
    return image(STARTED, NUMPY, SIX, *layers, config=config)


def disagreeing(serve: Image, train: Image | None = None) -> dict[str, str]:
    """The severity of what does not agree, by what it is about."""
    return {about: it.severity for about, it in proof(serve, train or started()).items() if not it.agrees}


@pytest.mark.parametrize(
    ("top", "about"),
    [
        (file(f"{SITE}/evil.pth", b"import os"), "startup"),
        (file(f"{SITE}/sitecustomize.py"), "startup"),
        (file(f"{SITE}/usercustomize/__init__.py"), "startup"),
        (file("usr/lib/python3.11/sitecustomize.py"), "startup"),
        (file("usr/lib/python311.zip"), "startup"),
        (file("root/.local/lib/python3.11/site-packages/usercustomize.py"), "startup"),
        (file("usr/lib/python3.11/numpy/__init__.py"), "modules"),
        (file(f"{SITE}/numpy.cpython-311-x86_64-linux-gnu.so"), "modules"),
        (file("opt/env/bin/python._pth", b"/app"), "startup"),
        (file("opt/env/pyvenv.cfg", b"home = /app/bin"), "pyvenv.cfg"),
        (file("opt/env/pyvenv.cfg", b"home = /usr/bin\ninclude-system-site-packages = false"), "pyvenv.cfg"),
        (file("opt/env/bin/pyvenv.cfg", b"home = /app/bin"), "pyvenv.cfg"),
        (gone("opt/env/pyvenv.cfg"), "pyvenv.cfg"),
        (file("etc/ld.so.preload", b"/app/x.so"), "loader preload"),
        (file("usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libm.so.6", b"other"), "loader hwcaps"),
        (link("usr/lib/x86_64-linux-gnu/glibc-hwcaps", "/app/lib"), "loader hwcaps"),
        (file("usr/lib/x86_64-linux-gnu/haswell/x86_64/libm.so.6", b"other"), "loader hwcaps"),
    ],
)
def test_what_a_layer_on_top_puts_before_trainings_files_is_an_error(top, about):
    assert disagreeing(started((top,))) == {about: "error"}


def test_a_startup_file_that_a_link_leads_to_counts():
    hook = "etc/python3.11/sitecustomize.py"
    train = started((link("usr/lib/python3.11/sitecustomize.py", f"/{hook}"), file(hook, b"import apport")))
    changed = replace(train, layers=(*train.layers, layer(file(hook, b"import evil"))))
    found = proof(changed, train)
    assert {about: it.severity for about, it in found.items() if not it.agrees} == {
        "layers": "error",
        "python": "error",
    }
    assert "/usr/lib/python3.11/sitecustomize.py" in found["python"].says


INIT = f"{SITE}/numpy/__init__.py"
PYC = f"{SITE}/numpy/__pycache__/__init__.cpython-311.pyc"
SOURCE = next(it.content for it in NUMPY if it.path == INIT)
UNCHECKED, CHECKED = 1, 3


def bytecode(path: str = PYC, source: bytes = SOURCE, *, flags: int = UNCHECKED) -> Put:
    """Bytecode of Python 3.11 that says it is of this source."""
    head = (3495).to_bytes(2, "little") + b"\r\n"
    hashed = _imp.source_hash(int.from_bytes(head, "little"), source)
    return file(path, head + flags.to_bytes(4, "little") + hashed + b"code")


@pytest.mark.parametrize(
    "top",
    [
        (bytecode(source=b"evil"),),
        (bytecode("app/evil.pyc", b"evil"), link(PYC, "/app/evil.pyc")),
        (bytecode("app/pc/__init__.cpython-311.pyc", b"evil"), link(f"{SITE}/numpy/__pycache__", "/app/pc")),
        (bytecode(PYC.replace(".pyc", ".opt-1.pyc"), b"evil"),),
    ],
)
def test_bytecode_that_python_takes_unchecked_has_to_be_of_the_source(top):
    assert disagreeing(started(top)) == {"bytecode": "error"}


def test_bytecode_of_the_sources_that_are_there_raises_no_alarm():
    own = (file("app/own.py", b"1"), bytecode("app/__pycache__/own.cpython-311.pyc", b"2"))
    assert disagreeing(started((bytecode(),), own)) == {}
    assert disagreeing(started((bytecode(source=b"evil", flags=CHECKED),))) == {}, "Python holds it to its source"


@pytest.mark.parametrize(
    ("env", "top", "about", "severity"),
    [
        ("PYTHONPATH=/app", file("app/numpy/__init__.py"), "PYTHONPATH", "error"),
        ("PYTHONPATH=/app", file("app/os.py", b"not os"), "PYTHONPATH", "error"),
        ("PYTHONPATH=/app", file("app/sitecustomize.py"), "PYTHONPATH", "error"),
        ("PYTHONPATH=/srv:", file("app/numpy.py"), "PYTHONPATH", "error"),
        ("PYTHONPATH=/app/x.zip", file("app/x.zip"), "PYTHONPATH", "error"),
        ("PYTHONHOME=/app", file("app/a"), "PYTHONHOME", "error"),
        ("PYTHONSTARTUP=/app/a", file("app/a"), "PYTHONSTARTUP", "warning"),
        ("PYTHONPYCACHEPREFIX=/app/pc", file("app/a"), "PYTHONPYCACHEPREFIX", "warning"),
        ("LD_LIBRARY_PATH=/app/lib", file("app/lib/glibc-hwcaps/x86-64-v3/libm.so.6"), "LD_LIBRARY_PATH", "error"),
        ("LD_LIBRARY_PATH=/app/lib", file("app/lib/libm.so.6", b"other"), "LD_LIBRARY_PATH", "error"),
        ("LD_LIBRARY_PATH=/app/x86_64", file("app/x86_64/libm.so.6", b"other"), "LD_LIBRARY_PATH", "error"),
        ("LD_PRELOAD=/app/lib/libm.so.6", file("app/lib/libm.so.6", b"other"), "LD_PRELOAD", "error"),
        ("LD_PRELOAD=libtcmalloc.so.4", file("app/a"), "LD_PRELOAD", "warning"),
        ("LD_AUDIT=/app/a.so", file("app/a.so"), "LD_AUDIT", "error"),
        ("PATH=/app/bin:/opt/env/bin", file("app/bin/python", b"#!/bin/sh"), "PATH", "error"),
        ("PATH=/usr/bin", file("app/a"), "PATH", "error"),
    ],
)
def test_variables_that_lead_python_or_the_loader_elsewhere_are_found(env, top, about, severity):
    found = proof(started((top,), env=(env,), folder="/app"), started())
    assert {name: it.severity for name, it in found.items() if not it.agrees} == {about: severity}
    assert found[about].why
    assert found[about].todo


def test_what_lies_where_trainings_variables_lead_too_is_found():
    env = ("PYTHONPATH=/app",)
    train = started((file("app/train.py"),), env=env)
    assert disagreeing(started((file("app/train.py"),), (file("app/numpy.py"),), env=env), train) == {
        "PYTHONPATH": "error"
    }
    assert disagreeing(started((file("app/train.py"),), (file("app/serve.py"),), env=env), train) == {}


def test_modules_that_training_found_by_its_variables_and_serving_does_not_are_a_warning():
    top = (file("code/model.py"), file("code/lib/libown.so"))
    train = started(top, env=("PYTHONPATH=/code", "LD_LIBRARY_PATH=/code/lib"))
    assert disagreeing(started(top), train) == {"PYTHONPATH": "warning", "LD_LIBRARY_PATH": "warning"}


@pytest.mark.parametrize(
    ("env", "top"),
    [
        ("PYTHONPATH=/app", (file("app/serve.py"), file("app/tests/__init__.py"), folder("app/numpy"))),
        ("PYTHONPATH=/app", (file("app/venv/lib/python3.11/os.py"),)),
        ("LD_LIBRARY_PATH=/app/lib", (file("app/lib/libown.so.1"),)),
        ("LD_LIBRARY_PATH=/usr/local/nvidia/lib64", (file("app/a"),)),
        ("PATH=/opt/env/bin:/app/bin", (file("app/bin/python3"),)),
        ("PATH=/app/bin:/opt/env/bin", (file("app/bin/serve"),)),
        ("PORT=8080", (file("app/a"),)),
        ("PORT=8080", (file("app/venv/pyvenv.cfg"), file("app/venv/lib/python3.11/site-packages/_virtualenv.pth"))),
    ],
)
def test_a_program_of_ones_own_raises_no_alarm(env, top):
    assert disagreeing(started(top, env=(env,))) == {}


def test_startup_files_that_an_added_package_lists_are_that_packages():
    info, hook = f"{SITE}/hooks-1.0.dist-info", file(f"{SITE}/hooks.pth", b"import hooks")
    record = record_line("hooks.pth", hook.content) + "\nhooks-1.0.dist-info/RECORD,,\n"
    found = proof(started((hook, file(f"{info}/METADATA"), file(f"{info}/RECORD", record.encode()))), started())
    assert agreeing(found)
    assert found["added"].packages == ("hooks 1.0",)


def test_what_each_installer_puts_into_its_environments_is_a_warning():
    assert disagreeing(started((file(f"{SITE}/_virtualenv.pth"), file(f"{SITE}/_virtualenv.py")))) == {
        "startup": "warning"
    }


def test_an_environment_in_another_folder_that_path_finds_agrees():
    site = "srv/env/lib/python3.11/site-packages"
    moved = (*package("numpy", "1.26.4", site=site), *package("six", "1.17.0", site=site))
    serve = image(
        (*BASE[:-1], link("srv/env/bin/python", "/usr/bin/python3.11"), file("srv/env/pyvenv.cfg", b"home = /usr/bin")), moved,
        config={"Env": ["PATH=/srv/env/bin:/usr/bin"]},
    )  # fmt: skip
    assert set(disagreeing(serve)) <= {"layers", "python"}, "a link that lies elsewhere"
    assert "PATH" not in disagreeing(serve)


def test_an_image_with_the_same_layers_and_other_variables_is_read():
    assert disagreeing(started(env=("PYTHONHOME=/x",))) == {"PYTHONHOME": "error"}
    assert disagreeing(started(env=("PORT=1",))) == {}


def test_a_blob_that_the_registry_has_damaged_says_what_to_do():
    serve = started((file("app/a"),))
    with FakeRegistry() as registry:
        blobs = registry.repositories["churn"].blobs
        blobs[str(serve.config_digest)] = serve.config
        for it in serve.layers:
            with it.open() as blob:
                blobs[str(it.descriptor.digest)] = blob.read()
        registry.put_manifest("churn", "1", serve.manifest, MANIFEST)
        pulled = pull(Reference.parse(f"{registry.host}/churn:1"), machine="x86_64")
        name = str(serve.layers[-1].descriptor.digest)
        blobs[name] = blobs[name][:-1] + b"x"
        with pytest.raises(RegistryError, match=name) as caught:
            proof(pulled, started())
    assert "push the image again" in caught.value.todo
