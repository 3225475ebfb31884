"""The Kubernetes manifest has the fields that KubeRay knows, and its parts fit together.

There is no Kubernetes here. The schema is written by hand from KubeRay's API reference, for the fields that are used.
"""

import copy
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import yaml

from tests.cluster import HEALTH
from tests.hosts import ROOT

Plain = dict[str, Any]


def closed(properties: Plain, *required: str) -> Plain:
    """An object with these fields and no others; all are required if none are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
COUNT = {"type": "integer", "minimum": 0}
# Kubernetes refuses numbers in these places: environment, ray start.
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITIES = {"type": "object", "additionalProperties": {"type": "string", "pattern": r"^\d+(\.\d+)?(m|[KMGT]i?)?$"}}
CONTAINER = closed(
    {
        "name": NAME,
        "image": {"type": "string", "pattern": r"^[\w./-]+:[\w.-]+$"},
        "env": {"type": "array", "items": closed({"name": TEXT, "value": TEXT})},
        "ports": {"type": "array", "items": closed({"name": NAME, "containerPort": {"type": "integer"}})},
        "resources": closed({"requests": QUANTITIES, "limits": QUANTITIES}),
        "volumeMounts": {"type": "array", "items": closed({"name": NAME, "mountPath": TEXT})},
    },
    *("name", "image", "resources", "volumeMounts"),
)
VOLUME = closed({"name": NAME, "persistentVolumeClaim": closed({"claimName": NAME})})
POD = closed(
    {
        "spec": closed(
            {
                "containers": {"type": "array", "items": CONTAINER, "minItems": 1},
                "volumes": {"type": "array", "items": VOLUME},
            }
        )
    }
)
HEAD = closed(
    {
        "serviceType": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
        "rayStartParams": TEXTS,
        "template": POD,
    }
)
WORKERS = closed(
    {
        "groupName": NAME,
        "replicas": COUNT,
        "minReplicas": COUNT,
        "maxReplicas": COUNT,
        "rayStartParams": TEXTS,
        "template": POD,
    }
)
RAYJOB = closed(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "entrypoint": TEXT,
                "backoffLimit": COUNT,
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "ttlSecondsAfterFinished": COUNT,
                "rayClusterSpec": closed(
                    {
                        "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                        "authOptions": closed({"mode": {"enum": ["disabled", "token"]}}),
                        "headGroupSpec": HEAD,
                        "workerGroupSpecs": {"type": "array", "items": WORKERS, "minItems": 1},
                    }
                ),
            }
        ),
    }
)
CLAIM = closed(
    {
        "apiVersion": {"const": "v1"},
        "kind": {"const": "PersistentVolumeClaim"},
        "metadata": closed({"name": NAME}),
        "spec": closed(
            {
                "accessModes": {"type": "array", "items": {"const": "ReadWriteMany"}, "minItems": 1},
                "resources": closed({"requests": QUANTITIES}),
            }
        ),
    }
)


@pytest.fixture
def manifest() -> list[Plain]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "kuberay.yaml").read_text()))


def pods(job: Plain) -> list[Plain]:
    cluster = job["spec"]["rayClusterSpec"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def containers(job: Plain) -> list[Plain]:
    return [container for pod in pods(job) for container in pod["containers"]]


def test_the_manifest_has_the_fields_that_kuberay_knows(manifest: list[Plain]) -> None:
    claim, job = manifest
    jsonschema.validate(claim, CLAIM)
    jsonschema.validate(job, RAYJOB)


SPOILT: list[Callable[[Plain], object]] = [
    lambda job: job["spec"].update(entryPoint=job["spec"].pop("entrypoint")),
    lambda job: job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
    lambda job: containers(job)[1]["resources"]["limits"].update(cpu=8),
    lambda job: containers(job)[0]["env"].append({"name": "A", "value": 1}),
    lambda job: job["spec"]["rayClusterSpec"]["authOptions"].update(mode="none"),
    lambda job: pods(job)[1].pop("containers"),
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_spoilt_manifest_is_refused(manifest: list[Plain], spoil: Callable[[Plain], object]) -> None:
    job = copy.deepcopy(manifest[1])
    spoil(job)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(job, RAYJOB)


def test_every_pod_sees_the_runs(manifest: list[Plain]) -> None:
    claim, job = manifest
    folder = re.search(r"--runs (\S+)", job["spec"]["entrypoint"])
    assert folder
    for pod in pods(job):
        claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"]}
        for container in pod["containers"]:
            mounted = {claims[one["name"]]: one["mountPath"] for one in container["volumeMounts"]}
            assert mounted[claim["metadata"]["name"]] == folder[1]


def test_pods_get_what_they_ask_for_and_run_one_version(manifest: list[Plain]) -> None:
    job = manifest[1]
    assert len({container["image"] for container in containers(job)}) == 1
    for container in containers(job):
        assert container["resources"]["requests"] == container["resources"]["limits"]
    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}\n" in (ROOT / "constraints.txt").read_text()


def test_hosts_are_watched_as_in_the_tests(manifest: list[Plain]) -> None:
    head = {one["name"]: one["value"] for one in containers(manifest[1])[0]["env"]}
    script = (ROOT / "deploy" / "slurm.sh").read_text()
    assert HEALTH.items() <= head.items()
    assert dict(re.findall(r"(RAY_health_check_\w+)=(\d+)", script)) == HEALTH
