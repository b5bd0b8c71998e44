"""The manifests of demos/kubernetes_demo against definitions of KubeRay and Kubernetes, offline."""

from __future__ import annotations

import ast
import copy
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paddle_ngraph import __main__ as command_line
from tests import jobs

jsonschema = pytest.importorskip("jsonschema", reason="make cluster has an environment with it")
yaml = pytest.importorskip("yaml", reason="make cluster has an environment with it")

FOLDER = jobs.ROOT / "demos" / "kubernetes_demo"
SCHEMAS = json.loads(Path(__file__).with_name("schemas.json").read_text())
MANIFESTS = [
    pytest.param(each, id=f"{path.stem}-{each['kind']}")
    for path in sorted(FOLDER.glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text())
]
# Maps whose keys are the user's: a renamed one is another entry.
FREE = {"metadata", "selector", "limits", "requests", "rayStartParams"}


def of_kind(kind: str) -> Any:
    return next(each.values[0] for each in MANIFESTS if each.values[0]["kind"] == kind)


def errors(manifest: Any) -> list[str]:
    schema = {"$ref": f"#/properties/{manifest['kind']}", **SCHEMAS}
    return [
        error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(manifest)
    ]


def fields(manifest: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each field that a definition names."""
    pairs = enumerate(manifest) if isinstance(manifest, list) else manifest.items()
    for key, value in pairs:
        if isinstance(manifest, dict):
            yield (*path, key)
        if key not in FREE and isinstance(value, (dict, list)):
            yield from fields(value, (*path, key))


def test_there_is_a_manifest_of_each_kind():
    assert {each.values[0]["kind"] for each in MANIFESTS} == {
        "Job",
        "RayJob",
        "RayService",
        "Service",
    }


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_manifests_are_valid(manifest):
    assert errors(manifest) == []


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_misspelled_field_is_an_error_anywhere(manifest):
    paths = [path for path in fields(manifest) if path != ("kind",)]
    assert len(paths) > 5
    for path in paths:
        wrong = copy.deepcopy(manifest)
        parent = wrong
        for key in path[:-1]:
            parent = parent[key]
        parent[f"{path[-1]}x"] = parent.pop(path[-1])
        assert errors(wrong), path


def parsed(command: str) -> Any:
    """The options of a command line of this package, after ``python -m paddle_ngraph``."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "paddle_ngraph"]
    return command_line._parser().parse_args(words[3:])


def test_the_job_starts_a_launcher_in_each_pod():
    spec = of_kind("Job")["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    command = shlex.join(container["command"]).replace("$(JOB_COMPLETION_INDEX)", "3")
    options = parsed(command.replace("'", ""))
    assert options.nnodes == spec["completions"] == spec["parallelism"]
    assert options.node_rank == 3 and options.ray is None
    service = of_kind("Service")["metadata"]["name"]
    name = of_kind("Job")["metadata"]["name"]
    assert options.master.partition(":")[0] == f"{name}-0.{service}"
    assert spec["template"]["spec"]["subdomain"] == service
    assert options.nproc == int(container["resources"]["limits"]["cpu"])


def test_the_ray_job_has_a_core_for_each_rank():
    spec = of_kind("RayJob")["spec"]
    options = parsed(spec["entrypoint"])
    assert options.ray == "auto" and options.max_restarts > 0
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    cores = int(container["resources"]["limits"]["cpu"])
    assert options.nproc == cores * group["replicas"]


def test_the_service_names_the_application_of_the_server():
    schema = pytest.importorskip("ray.serve.schema", reason="make cluster has Ray Serve")
    spec = of_kind("RayService")["spec"]
    config = schema.ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    (application,) = config.applications
    assert {each.name for each in application.deployments} == {"Front", "Replica"}
    module, _, name = application.import_path.partition(":")
    tree = ast.parse((FOLDER / f"{module}.py").read_text())
    assert name in [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]


def test_images_and_versions_agree():
    text = "".join(path.read_text() for path in FOLDER.glob("*.yaml"))
    dockerfile = (FOLDER / "Dockerfile").read_text()
    (image,) = set(re.findall(r"\bimage: (\S+)$", text, re.MULTILINE))
    assert f"-t {image} " in dockerfile
    (version,) = set(re.findall(r'rayVersion: "(.*)"', text))
    assert f"ray[data,serve,train]=={version}" in (jobs.ROOT / "pyproject.toml").read_text()
    saves = re.findall(r"python -m paddle_ngraph save .*?(?<!\\)\n", dockerfile, re.DOTALL)
    options = parsed(saves[0].replace("\\\n", " "))
    assert (
        options.output == "served/model" and '"served/model"' in (FOLDER / "server.py").read_text()
    )
