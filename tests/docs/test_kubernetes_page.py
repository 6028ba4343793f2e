"""The manifests on the page about Kubernetes fit KubeRay's schema and each other."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from forebay_compaction_ray.commands.group import compaction
from forebay_compaction_ray.protocol import SERVICE

jsonschema = pytest.importorskip("jsonschema", reason="the extra [server] brings it with Ray")
yaml = pytest.importorskip("yaml", reason="the extra [server] brings it with Ray")

STORAGE_CONF = "/etc/forebay/storage/storage.conf"
HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs/how-to/kubernetes.md").read_text(encoding="utf-8")
SCHEMA = json.loads((HERE / "raycluster-v1.schema.json").read_text(encoding="utf-8"))
MANIFESTS = {
    found["kind"]: found
    for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    for found in yaml.safe_load_all(block)
}
GATEWAY, WORKERS = MANIFESTS["RayCluster"]["spec"]["workerGroupSpecs"]


def problems(manifest):
    return [
        error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(manifest)
    ]


def container(group):
    (only,) = group["template"]["spec"]["containers"]
    return only


def started():
    """Return the parameters of the command that starts the gateway."""
    script = container(GATEWAY)["lifecycle"]["postStart"]["exec"]["command"][-1]
    words = shlex.split(script.partition("compaction start ")[2].partition("&&")[0])
    words[words.index(STORAGE_CONF)] = os.devnull  # the option checks that the file exists
    return compaction.commands["start"].make_context("start", words).params


def test_the_cluster_has_the_fields_that_kuberay_knows():
    assert problems(MANIFESTS["RayCluster"]) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda group: group.pop("groupName"), "'groupName' is a required property"),
        (lambda group: group.update(replica=1), "'replica' was unexpected"),
        (
            lambda group: group["rayStartParams"].update({"num-cpus": 0}),
            "0 is not of type 'string'",
        ),
        (
            lambda group: container(group).update(readinessProbe={"grpc": {}}),
            "'port' is a required",
        ),
    ],
)
def test_the_schema_refuses_what_kuberay_would_refuse(change, complaint):
    manifest = copy.deepcopy(MANIFESTS["RayCluster"])
    change(manifest["spec"]["workerGroupSpecs"][0])
    assert complaint in " ".join(problems(manifest))


def test_the_gateway_is_started_with_options_that_exist():
    given = started()
    assert given["workers"] == WORKERS["replicas"]
    assert given["host"] == "0.0.0.0"


def test_every_file_of_the_command_is_mounted_from_a_secret():
    mounts = {mount["mountPath"]: mount["name"] for mount in container(GATEWAY)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in GATEWAY["template"]["spec"]["volumes"]}
    given = started()
    names = ("token_file", "admin_token_file", "tls_cert", "tls_key")
    for path in (*(given[name] for name in names), STORAGE_CONF):
        secret = volumes[mounts[str(Path(path).parent)]]["secret"]["secretName"]
        assert secret in PAGE.partition("## The cluster")[0]


def test_ports_and_labels_fit_together():
    service, policy = MANIFESTS["Service"], MANIFESTS["NetworkPolicy"]
    port = started()["port"]
    assert port in [one["containerPort"] for one in container(GATEWAY)["ports"]]
    assert container(GATEWAY)["readinessProbe"]["tcpSocket"]["port"] == port
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [port]
    assert [one["port"] for one in policy["spec"]["ingress"][-1]["ports"]] == [port]
    cluster = MANIFESTS["RayCluster"]["metadata"]
    assert service["spec"]["selector"] == {
        "ray.io/cluster": cluster["name"],
        "ray.io/group": GATEWAY["groupName"],
    }
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert f"{name}.{namespace}.svc:{port}" in PAGE
    assert f"service: {SERVICE}" in PAGE


def test_a_worker_has_a_pod_of_its_own():
    assert WORKERS["rayStartParams"]["num-cpus"] == "1"
    assert started()["worker_cpus"] == 1.0
    assert "memory" in container(WORKERS)["resources"]["limits"]
    assert GATEWAY["rayStartParams"]["num-cpus"] == "0"
