"""The README and the documentation are held against the code: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from otel_lifecycle._configuration.settings import PREFIX, Settings
from otel_lifecycle._configuration.settings_help import HELP

pytestmark = pytest.mark.source

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.process
@pytest.mark.parametrize("page", ["README.md", "docs/start.md"])
def test_code_runs(tmp_path: Path, page: str) -> None:
    """The Python block runs as it stands, and prints its answer."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(code, encoding="utf-8")
    environ = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['a', 'b', 'c']\n", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the repository."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (page.parent / link).exists()] == []


def test_the_readme_can_be_read() -> None:
    """Below 150 lines, none wider than 160 characters, and no table longer than a screen."""
    lines = README.read_text(encoding="utf-8").splitlines()
    tables = re.findall(r"(?:^\|.*\n)+", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) < 150
    assert [line for line in lines if len(line.encode()) > 160] == []
    assert [table.splitlines()[0] for table in tables if table.count("\n") > 20] == []


def test_every_setting_is_explained() -> None:
    """A setting with a variable has its line in the reference, and nothing else does."""
    derived = {"exporters", "protocols", "slo", "default_endpoint", "resources", "resource_attributes"}
    names = {*Settings.__dataclass_fields__, "protocol", "slo_ttft", "slo_tpot", "slo_e2e"} - derived
    assert {PREFIX + name.upper() for name in HELP} == {PREFIX + name.upper() for name in names}
