"""Certificates of a test's own: an authority, what it issued, and a stranger that nobody trusts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.stack.programs import LOOPBACK

SERVER_NAME: Final = "server.test"
"""The name in the certificate of ``server``, beside the loopback address."""
KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1")


def make(folder: Path) -> Path:
    """Make ``ca``, ``server`` (of the loopback address), ``client`` and ``stranger``, each as .pem and .key."""

    def openssl(name: str, *arguments: str) -> None:
        out = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        subprocess.run(["openssl", "req", "-x509", *KEY, *arguments, *out], cwd=folder, check=True, capture_output=True)

    issued = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:false")
    openssl("ca")
    openssl("stranger")
    openssl("server", *issued, "-addext", f"subjectAltName=IP:{LOOPBACK},DNS:{SERVER_NAME}")
    openssl("client", *issued)
    return folder
