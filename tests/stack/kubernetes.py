"""The Kubernetes files: rendered by kustomize, the rules put into their custom resource, unknown fields refused.

``python -m tests.stack.kubernetes`` writes ``base/rules.yaml`` anew after the rules have changed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.stack import build
from tests.stack.programs import CONFIG

KUBERNETES: Final = CONFIG / "kubernetes"
RULES: Final = KUBERNETES / "base" / "rules.yaml"
OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
"""Where the schemas of its custom resources come from; only downloaded, never compiled."""


def render(overlay: str) -> list[dict[str, Any]]:
    """Return the objects of an overlay, as ``kubectl kustomize`` makes them."""
    command = [str(build.ensure("kustomize")), "build", "--load-restrictor", "LoadRestrictionsNone"]
    done = subprocess.run(
        [*command, str(KUBERNETES / "overlays" / overlay)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def rules() -> dict[str, Any]:
    """Return the rules of ``rules/`` as one PrometheusRule."""
    groups = [group for path in sorted((CONFIG / "rules").glob("*.yaml")) for group in _groups(path)]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "inference"},
        "spec": {"groups": groups},
    }


def _groups(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load(path.read_text())["groups"])


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml's where it is there
    """Reads a lone "=" as text: YAML 1.1 has a type for it that PyYAML knows and cannot build."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: loader.construct_scalar(node))


def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a custom resource of the operator."""
    command = ["go", "mod", "download", "-json", OPERATOR]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=KUBERNETES)
    folder = Path(json.loads(done.stdout)["Dir"]) / "example" / "prometheus-operator-crd"
    path = folder / f"monitoring.coreos.com_{kind.lower()}{'es' if kind.endswith('s') else 's'}.yaml"
    # Seven hundred kilobytes: the loader that is written in Python takes half a minute of CPU for it.
    # Go takes a flag inside a pattern, Python at its head alone.
    text = path.read_text().replace("^(?i)", "(?i)^")
    definition = yaml.load(text, Loader=_Loader)  # a safe loader
    (served,) = (version for version in definition["spec"]["versions"] if version["storage"])
    return dict(served["schema"]["openAPIV3Schema"])


def unknown(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the fields that a schema does not know: the API server drops them without a word."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from unknown(item, schema.get("items", {}), f"{path}[{number}]")
        return
    properties = schema.get("properties")
    if not isinstance(value, Mapping) or properties is None or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    # The API server itself knows these of every object.
    if not path:
        properties = {**properties, "metadata": {}}
    for name, inner in value.items():
        if name not in properties:
            yield f"{path}.{name}"
        else:
            yield from unknown(inner, properties[name], f"{path}.{name}")


class _Dumper(yaml.SafeDumper):
    """Without anchors: the same annotations of two alerts are written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # the name is PyYAML's
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def written() -> str:
    """Return ``base/rules.yaml`` as it should be."""
    body = yaml.dump(rules(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return "# Made by `python -m tests.stack.kubernetes` from rules/; edit there.\n" + body


if __name__ == "__main__":
    RULES.write_text(written())
