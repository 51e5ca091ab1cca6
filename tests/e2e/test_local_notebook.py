"""A notebook server above an environment: it comes up in a container, and a browser runs a cell in it."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from envbuild.build.extend import EngineChild
from envbuild.local import notebook
from envbuild.local.model import Launch
from envbuild.lock.formats import read_pylock
from envbuild.lock.run import Options, lock_run
from envbuild.oci.reference import Reference
from tests.e2e.docker_builds import wheel_folder
from tests.e2e.services import command_output, running
from tests.making import make_server, make_venv
from tests.reporting import Calling
from tests.unit.locking import HERE
from tests.unit.test_from_manifest import manifest_of

pytestmark = pytest.mark.real
USER = "23456:23456"
"""Nobody whom the image or this machine knows."""
CELL = """
import json, sys, tool, importlib.metadata
print(json.dumps([sys.prefix, tool.__file__, importlib.metadata.version("ipykernel") > "6"]))
"""
TENSORFLOW = """
import tensorflow as tf
print(tf.__version__, tf.__file__, int(tf.reduce_sum(tf.range(10))))
"""


REPORTER = Calling(step=print, note=print, warn=print)


class Notebooks:
    """An environment's image in a registry, and what a notebook server above it is started with."""

    def __init__(self, folder: Path, engine, registry, envbuild, cache: Path) -> None:
        self.folder, self.engine, self.registry, self.envbuild, self.cache = folder, engine, registry, envbuild, cache

    def build(self, manifest: Path, *options: str | Path) -> EngineChild:
        """Build and push the environment, let the engine pull it, and put the server above it."""
        out, name = self.folder / "out", f"{self.registry.host}/notebooks/{manifest.stem}"
        wanted = ("from-manifest", manifest, "--base", "debian:bookworm", "--push", name, "--out", out, *options)
        reference = self.envbuild(*wanted).stdout.strip()
        context = out / "context"
        self.lock = read_pylock((context / "pylock.toml").read_bytes(), "pylock.toml", context)
        self.parent = Reference.parse(reference)
        self.engine.pull(reference)
        return self.extend()

    def extend(self) -> EngineChild:
        options = Options(cache=self.cache / "envbuild")
        return notebook.notebook_image(self.engine.client, self.parent, self.lock, options, REPORTER)

    @contextmanager
    def running(self, image: str, cell: str) -> Iterator[str]:
        """Run the server on a notebook of one cell, and yield the address that is told."""
        place, token, port = self.folder / "work", notebook.new_token(), notebook.free_port()
        told: Queue[str] = Queue()
        place.mkdir()
        place.chmod(0o777)
        empty: dict[str, Any] = {"execution_count": None, "metadata": {}, "outputs": []}
        code = {"cell_type": "code", "source": cell.strip(), **empty}
        whole = {"cells": [code], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
        (place / "one.ipynb").write_text(json.dumps(whole))
        launch = notebook.notebook_launch(Launch(image=image, command=notebook.COMMAND), image, token, port)
        container = self.engine.client.containers.run(
            launch.image, list(launch.command), environment=dict(launch.variables), user=USER, detach=True, init=True,
            working_dir=launch.folder, volumes={str(place): {"bind": launch.folder, "mode": "rw"}},
            ports={f"{it.container}/tcp": (it.address, it.host) for it in launch.ports},
        )  # fmt: skip
        try:
            with notebook.announced(port, token, told.put):
                address = told.get(timeout=60)
            assert token not in json.dumps([container.attrs["Config"][key] for key in ("Cmd", "Entrypoint", "Labels")])
            yield address
            assert "Traceback" not in container.logs().decode()
            container.stop(timeout=10)
            assert container.wait()["StatusCode"] == 0
        finally:
            print(container.logs().decode())
            container.remove(force=True, v=True)


@pytest.fixture
def notebooks(tmp_path, engine, registry, envbuild, cache) -> Notebooks:
    return Notebooks(tmp_path, engine, registry, envbuild, cache)


@pytest.fixture
def browser(tmp_path) -> Iterator[Chrome]:
    """Debian's Chromium, which shows nothing and keeps nothing."""
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"):
        options.add_argument(option)
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    driver = Chrome(options=options, service=ChromeService(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def opened(browser: Chrome, address: str, found: Callable[[Chrome], Any], seconds: float) -> Any:
    """Open a page, and wait for what is looked for on it.

    Chromium drops what it is loading whenever the machine gets another address, as it does some time after each start
    of a container. The page is opened again then, as a user would do it.
    """
    loaded = False

    def look(browser: Chrome) -> Any:
        nonlocal loaded
        dropped = any("ERR_NETWORK_CHANGED" in entry["message"] for entry in browser.get_log("browser"))
        if dropped or not loaded:
            loaded = False
            browser.get(address)
            loaded = True
        return found(browser)

    return WebDriverWait(browser, seconds, ignored_exceptions=[WebDriverException]).until(look)


def run_cell(browser: Chrome, address: str, seconds: float) -> str:
    """Open the address as told, go to the notebook, press Shift and Enter in its cell; return what it prints."""
    wait = WebDriverWait(browser, seconds)
    link = opened(browser, address, lambda it: it.find_element(By.LINK_TEXT, "one.ipynb"), seconds)
    connected = "return window.Jupyter?.notebook?.kernel?.is_connected?.() || false"
    opened(browser, str(link.get_attribute("href")), lambda it: it.execute_script(connected), seconds)
    browser.find_element(By.CSS_SELECTOR, ".code_cell .CodeMirror").click()
    browser.switch_to.active_element.send_keys(Keys.SHIFT, Keys.ENTER)
    return str(wait.until(lambda it: it.find_element(By.CSS_SELECTOR, ".output_area .output_stdout")).text)


def test_a_browser_runs_a_cell_with_the_environments_packages_and_nothing_in_it_is_moved(notebooks, browser, tmp_path):
    manifest = tmp_path / "small.json"
    manifest.write_text(json.dumps(manifest_of()))
    made = notebooks.build(manifest, "--offline", "--find-links", wheel_folder(tmp_path / "wheels"))
    with notebooks.running(made.id, CELL) as address:
        prefix, path, new = json.loads(run_cell(browser, address, 30))
    assert (prefix, new) == ("/opt/notebook", True)
    assert path == "/opt/env/lib/python3.11/site-packages/tool.py"
    assert made.made is not None
    assert made.sent < 100 << 20, "the engine had the layers of the environment"
    assert notebooks.extend() == EngineChild(id=made.id, name=made.name), "the second time, the engine has it"


@pytest.mark.slow  # 25 s; the image has it as well
def test_without_an_engine_the_server_has_a_virtual_environment_beside_the_other(tmp_path, cache, monkeypatch):
    options, environment = Options(cache=cache / "envbuild"), tmp_path / "an env"
    below = lock_run(("six==1.16.0",), HERE, (), options).lock
    make_venv(environment, below, HERE.python, REPORTER, cache=options.cache)
    python = make_server(environment, below, options, REPORTER)
    code = "import six, sys, ipykernel; print(sys.prefix, six.__file__, ipykernel.__file__, sep='\\n')"
    prefix, shared, own = command_output(str(python), "-c", code).splitlines()
    assert Path(prefix) == python.parent.parent == notebook.server_folder(environment)
    assert Path(shared).is_relative_to(environment)
    assert Path(own).is_relative_to(prefix)
    token, port, told = notebook.new_token(), notebook.free_port(), Queue[str]()
    monkeypatch.setenv(notebook.TOKEN, token)
    monkeypatch.setenv("HOME", str(tmp_path))
    command = notebook.server_command(str(python), port)
    with running(command, tmp_path / "log", lambda: True), notebook.announced(port, token, told.put):
        assert told.get(timeout=60) == f"http://127.0.0.1:{port}/tree?token={token}"


@pytest.mark.slow
def test_a_browser_runs_a_cell_that_imports_tensorflow(notebooks, browser, train_env, tmp_path):
    python = train_env("3.11", "tensorflow-cpu==2.15.1", "pip==24.0")
    manifest = tmp_path / "tensorflow.json"
    notebooks.envbuild("capture", "--python", python, "--out", manifest)
    made = notebooks.build(manifest)
    with notebooks.running(made.id, TENSORFLOW) as address:
        assert run_cell(browser, address, 90).split() == [
            "2.15.1", "/opt/env/lib/python3.11/site-packages/tensorflow/__init__.py", "45",
        ]  # fmt: skip
