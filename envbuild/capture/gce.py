"""What Google Cloud's metadata server says of the machine, without a wait where there is none."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from contextlib import closing

from envbuild.capture.reading import Facts, read_text
from envbuild.capture.redact import scrub_line

METADATA_ADDRESS = "169.254.169.254"
"""An address, since looking up metadata.google.internal can take seconds where nobody knows that name."""
METADATA_PATHS = {
    "machine_type": "instance/machine-type",
    "zone": "instance/zone",
    "project": "project/project-id",
    "image": "instance/image",
}
WAIT = 0.25
"""Seconds for all answers together, where only variables speak for Google Cloud."""
WAIT_ON_GOOGLE = 1.0
GOOGLE_VARIABLES = ("CLOUD_ML_JOB_ID", "K_SERVICE", "CLOUD_RUN_JOB", "KUBERNETES_SERVICE_HOST")
"""Set by Vertex AI, Cloud Run and Kubernetes, whose sandboxes can hide what the firmware says."""


def machine_facts(root: str = "/") -> Facts:
    """Ask the metadata server for machine type, zone, project and boot image (docs: VM metadata, predefined keys)."""
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP")
    product = (read_text(os.path.join(root, "sys/class/dmi/id/product_name")) or "").strip()
    on_google = product.startswith("Google")
    if os.environ.get("NO_GCE_CHECK", "").lower() in ("true", "1"):
        return {}
    if not (host or on_google or any(name in os.environ for name in GOOGLE_VARIABLES)):
        return {}
    answers = _ask(host or METADATA_ADDRESS, WAIT_ON_GOOGLE if on_google else WAIT)
    # The server writes projects/NUMBER/machineTypes/NAME; of an image its project matters too.
    short = {key: value if key == "image" else value.rpartition("/")[2] for key, value in answers.items()}
    return {key: scrub_line(value) for key, value in short.items()}


def _ask(host: str, wait: float) -> dict[str, str]:
    """Return what was answered in time; the thread is left behind, as nothing ends a hanging name lookup."""
    asking = _Asking(host, wait)
    try:
        asking.start()
    except RuntimeError:
        return {}
    asking.join(wait)
    # Before hanging up, which ends an answer in its middle.
    answers = dict(asking.answers)
    asking.hang_up()
    return answers


class _Asking(threading.Thread):
    """A conversation with the metadata server on one connection, without proxies, redirects or tokens."""

    def __init__(self, host: str, wait: float) -> None:
        super().__init__(name="envbuild-metadata", daemon=True)
        self.host, self.wait, self.end = host, wait, time.monotonic() + wait
        self.answers: dict[str, str] = {}
        self.connection: socket.socket | None = None

    def run(self) -> None:
        """Ask for one fact after the other until one is refused or the time is over."""
        try:
            self._converse()
        except Exception:
            # Whatever answers there is not worth the capture.
            return

    def hang_up(self) -> None:
        """Wake the thread where it waits for a server that sends nothing, or one byte at a time."""
        self.end = 0.0
        try:
            if self.connection is not None:
                self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _converse(self) -> None:
        from http.client import HTTPConnection

        with closing(HTTPConnection(self.host, timeout=self.wait)) as connection:
            for key, path in METADATA_PATHS.items():
                if connection.sock is None:
                    connection.connect()
                # A lookup of the name may have taken all the time.
                if time.monotonic() > self.end:
                    return
                self.connection = connection.sock
                connection.request("GET", "/computeMetadata/v1/" + path, headers={"Metadata-Flavor": "Google"})
                response = connection.getresponse()
                if response.getheader("Metadata-Flavor") != "Google" or 300 <= response.status < 400:
                    return
                text = response.read(4096).decode("utf-8", "replace").strip()
                if response.length:
                    # It ended too soon, or is too long to be an answer.
                    return
                if response.status == 200 and re.fullmatch(r"[\w.:/-]{1,200}", text, re.ASCII):
                    self.answers[key] = text
