"""secure.yaml with certificates made here: who has a certificate and the token gets in, nobody else does."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.stack import programs
from tests.stack.certificates import make
from tests.stack.programs import CONFIG, LOOPBACK, Running

TOKEN: Final = "of-the-test"
BASIC: Final = base64.b64encode(b"server:of-the-test").decode()
Send = Callable[..., bool]

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of certificates made here."""
    return make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["Bearer", "Basic"])
def secured(request: pytest.FixtureRequest, tmp_path: Path, certificates: Path) -> Iterator[tuple[str, Running]]:
    """The header that gets in, and a Collector on collector.yaml and secure.yaml."""
    token = {"Bearer": TOKEN, "Basic": BASIC}[request.param]
    env = {
        "OTLP_CERT_FILE": str(certificates / "server.pem"),
        "OTLP_KEY_FILE": str(certificates / "server.key"),
        "OTLP_CLIENT_CA_FILE": str(certificates / "ca.pem"),
        "OTLP_TOKEN": token,
        "OTLP_AUTH_SCHEME": request.param,
        "TRACE_WAIT": "1s",
    }
    program = programs.collector(tmp_path, CONFIG / "collector.yaml", env=env)
    program.command = [*program.command, "--config", str(CONFIG / "secure.yaml")]
    try:
        yield f"{request.param} {token}", program.start()
    finally:
        program.stop()


def sent(program: Running, certificates: Path, header: str, client: str | None, authority: str = "ca") -> bool:
    """Send one span and return whether it was taken."""

    def read(name: str) -> bytes:
        return (certificates / name).read_bytes()

    own = (read(f"{client}.key"), read(f"{client}.pem")) if client else (None, None)
    exporter = OTLPSpanExporter(
        endpoint=f"https://{LOOPBACK}:{program.ports['grpc']}",
        credentials=grpc.ssl_channel_credentials(read(f"{authority}.pem"), *own),
        headers={"authorization": header} if header else None,
        timeout=3,
    )
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.get_tracer("of the test").start_span("secret").end()
    try:
        return exporter.export(kept.get_finished_spans()) is SpanExportResult.SUCCESS
    finally:
        exporter.shutdown()


def test_only_who_has_certificate_and_token_gets_in(secured: tuple[str, Running], certificates: Path) -> None:
    """Both right: taken.  No token, a wrong one, no certificate, a stranger's, a server not trusted: refused."""
    header, program = secured
    tried = {
        "both": sent(program, certificates, header, "client"),
        "no token": sent(program, certificates, "", "client"),
        "wrong token": sent(program, certificates, f"{header}x", "client"),
        "no certificate": sent(program, certificates, header, None),
        "stranger's certificate": sent(program, certificates, header, "stranger"),
        "server not trusted": sent(program, certificates, header, "client", authority="stranger"),
    }
    assert tried == {name: name == "both" for name in tried}
