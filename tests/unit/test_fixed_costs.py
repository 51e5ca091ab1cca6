"""What every run pays for, whatever it does: imports, certificates, and where uv is."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from envbuild.capture import script
from envbuild.errors import RegistryError
from envbuild.lock.settings import uv_program
from envbuild.registry.transport import Transport
from tests.fakes.registry import FakeRegistry

REPOSITORY = Path(__file__).parents[2]


def said(code: str, path: Path | None = None, **variables: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{path or ''}{os.pathsep}{REPOSITORY}"} | variables
    environment = {name: value for name, value in environment.items() if name not in {"FORCE_COLOR", "TTY_COMPATIBLE"}}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_uv_is_looked_for_in_no_thread(tmp_path):
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/__init__.py").write_text(
        "import threading\n"
        "def find_uv_bin():\n"
        "    print(threading.current_thread() is threading.main_thread())\n"
        f"    return {uv_program()!r}\n"
    )
    code = "from envbuild.lock.settings import read_settings; read_settings()"
    assert set(said(code, tmp_path).split()) == {"True"}


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import envbuild", "envbuild.capture.record"),
        ("import envbuild.lock", "envbuild.capture.record"),
        ("from envbuild.cli import console; console.Progress().step('text')", "rich.console"),
    ],
)
def test_what_is_not_used_is_not_imported(code, modules):
    assert said(f"{code}; import sys; print({modules!r} in sys.modules)") == "False"


def test_what_is_imported_late_stays_a_function():
    code = "import envbuild.capture.record, envbuild; from envbuild.capture import capture, script; script(); script()"
    code += "; print(envbuild.capture is capture, callable(script), len(capture()['distributions']) > 0)"
    assert said(code) == "True True True"
    assert "def capture(" in script()


def test_plain_http_reads_no_certificates(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent"))
    with FakeRegistry() as registry:
        plain = httpx.URL(f"http://{registry.host}/v2/")
        transport = Transport(plain, keep_alive=False)
        assert transport.send("GET", plain, headers={}).status_code == 200
        with pytest.raises(RegistryError) as caught:
            transport.send("GET", plain.copy_with(scheme="https"), headers={})
    assert caught.value.where == str(tmp_path / "absent")
    transport.close()
