"""Writes ``schemas.json`` from the custom resource definitions of KubeRay.

    python -m tests.kubernetes.reduce_schemas CHECKOUT

The result has the fields, types and limits of RayJob, RayService (ray.io/v1), and of a Job and a
headless Service, whose pods and specifications KubeRay's definitions contain. It has neither
descriptions nor rules in CEL, and a field that is not defined is an error. KubeRay and Kubernetes
are under the Apache License 2.0.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

RELEASE = "v1.7.0"
FOLDER = "helm-chart/kuberay-operator/crds"
OUTPUT = Path(__file__).with_name("schemas.json")
# What JSON Schema has no word for.
DROPPED = {"description", "format", "default"}
SHARED_BYTES = 200
STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
# The fields of a JobSpec of batch/v1, of api/openapi-spec/v3/apis__batch__v1_openapi.json of
# Kubernetes 1.32, without those whose schemas the definitions of KubeRay lack.
JOB_FIELDS: dict[str, Any] = {
    "activeDeadlineSeconds": INTEGER,
    "backoffLimit": INTEGER,
    "backoffLimitPerIndex": INTEGER,
    "completionMode": {"enum": ["Indexed", "NonIndexed"]},
    "completions": INTEGER,
    "managedBy": STRING,
    "manualSelector": BOOLEAN,
    "maxFailedIndexes": INTEGER,
    "parallelism": INTEGER,
    "podFailurePolicy": {
        "type": "object",
        "properties": {
            "rules": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "action": {"enum": ["Count", "FailIndex", "FailJob", "Ignore"]},
                        "onExitCodes": {
                            "type": "object",
                            "properties": {
                                "containerName": STRING,
                                "operator": {"enum": ["In", "NotIn"]},
                                "values": {"type": "array", "items": INTEGER},
                            },
                            "required": ["operator", "values"],
                            "additionalProperties": False,
                        },
                    },
                    "required": ["action"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["rules"],
        "additionalProperties": False,
    },
    "podReplacementPolicy": {"enum": ["TerminatingOrFailed", "Failed"]},
    "suspend": BOOLEAN,
    "ttlSecondsAfterFinished": INTEGER,
}


def reduced(schema: Any) -> Any:
    """A schema of OpenAPI as JSON Schema that rejects fields which are not defined."""
    if isinstance(schema, list):
        return [reduced(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        if key == "properties":
            found[key] = {name: reduced(each) for name, each in value.items()}
        elif key not in DROPPED and not key.startswith("x-kubernetes"):
            found[key] = value if key in ("enum", "required") else reduced(value)
    if "properties" in found and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def shared(schemas: dict[str, Any]) -> dict[str, Any]:
    """The schemas with what occurs in several places in ``$defs``."""
    counts: collections.Counter[str] = collections.Counter()

    def count(schema: Any) -> None:
        if isinstance(schema, dict):
            text = json.dumps(schema, sort_keys=True)
            counts[text] += 1
            if counts[text] == 1:
                for each in schema.values():
                    count(each)
        elif isinstance(schema, list):
            for each in schema:
                count(each)

    count(schemas)
    definitions: dict[str, Any] = {}
    names: dict[str, str] = {}

    def replaced(schema: Any) -> Any:
        if isinstance(schema, list):
            return [replaced(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        text = json.dumps(schema, sort_keys=True)
        if text in names:
            return {"$ref": f"#/$defs/{names[text]}"}
        found = {key: replaced(value) for key, value in schema.items()}
        if counts[text] == 1 or len(text) < SHARED_BYTES or "type" not in schema:
            return found
        names[text] = str(len(names))
        definitions[names[text]] = found
        return {"$ref": f"#/$defs/{names[text]}"}

    made = {name: replaced(schema) for name, schema in schemas.items()}
    return {"properties": made, "$defs": definitions}


def main(checkout: str) -> None:
    schemas = {}
    for kind in ("rayjobs", "rayservices"):
        path = f"{FOLDER}/ray.io_{kind}.yaml"
        text = subprocess.run(
            ["git", "-C", checkout, "show", f"{RELEASE}:{path}"], check=True, capture_output=True
        ).stdout
        definition = yaml.safe_load(text)["spec"]
        (version,) = (each for each in definition["versions"] if each["name"] == "v1")
        schema = reduced(version["schema"]["openAPIV3Schema"])
        schema["properties"].pop("status")
        schema["required"] = ["apiVersion", "kind", "metadata", "spec"]
        schemas[definition["names"]["kind"]] = schema
    ray = schemas["RayJob"]["properties"]["spec"]["properties"]["rayClusterSpec"]["properties"]
    pod = ray["headGroupSpec"]["properties"]["template"]
    service = schemas["RayService"]["properties"]["spec"]["properties"]["serveService"]
    service["properties"].pop("status", None)
    schemas["Service"] = service
    schemas["Job"] = {
        **schemas["RayJob"],
        "properties": {
            **schemas["RayJob"]["properties"],
            "spec": {
                "type": "object",
                "properties": {**JOB_FIELDS, "template": pod},
                "required": ["template"],
                "additionalProperties": False,
            },
        },
    }
    OUTPUT.write_text(json.dumps(shared(schemas), indent=None, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
