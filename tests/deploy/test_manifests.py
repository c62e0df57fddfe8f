"""Manifests render and are what their schemas say; compose files parse; the Dockerfile is clean."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import Settings
from support.programs import DEPLOY, library, program, run

pytestmark = pytest.mark.system

OVERLAYS = ("base", "monitoring", "autoscaling")
SCHEMAS = "1.33"
COMPOSE = [("compose.yaml",), ("compose.yaml", "compose.vllm.yaml")]


def rendered(overlay: str) -> list[dict[str, Any]]:
    text = run(program("kubectl"), "kustomize", str(DEPLOY / "kubernetes" / overlay))
    assert "Warning" not in text, text
    return list(yaml.safe_load_all(text))


def find(objects: list[dict[str, Any]], kind: str, name: str = "kvgate") -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def environment(deployment: dict[str, Any]) -> dict[str, str]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_renders_and_every_object_of_kubernetes_own_is_valid(overlay: str) -> None:
    kubernetes_validate = library("kubernetes_validate")
    objects = rendered(overlay)
    assert objects
    for each in objects:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            kubernetes_validate.validate(each, SCHEMAS, strict=True)


def test_the_schemas_would_notice_a_mistake() -> None:
    kubernetes_validate = library("kubernetes_validate")
    deployment = find(rendered("base"), "Deployment")
    deployment["spec"]["strategi"] = {"type": "Recreate"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, SCHEMAS, strict=True)


def test_one_replica_is_replaced_and_never_doubled() -> None:
    spec = find(rendered("base"), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_the_grace_period_is_longer_than_both_steps_of_the_drain() -> None:
    deployment = find(rendered("base"), "Deployment")
    settings = Settings.model_validate(environment(deployment))
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert settings.drain_delay_s > 0
    assert settings.drain_delay_s + settings.drain_timeout_s < grace_s


def test_probes_services_and_the_monitor_reach_the_ports_that_there_are() -> None:
    objects = rendered("monitoring")
    deployment = find(objects, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8700, "admin": 8701}
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "admin"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health", "port": "admin"}
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for name, port in (("kvgate", "http"), ("kvgate-admin", "admin")):
        service = find(objects, "Service", name)["spec"]
        assert service["selector"].items() <= labels.items()
        assert [each["targetPort"] for each in service["ports"]] == [port]
    monitor = find(objects, "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert [(each["port"], each["path"]) for each in monitor["spec"]["podMetricsEndpoints"]] == [("admin", "/metrics")]
    # The rules ask for job="kvgate".
    assert labels[monitor["spec"]["jobLabel"]] == "kvgate"


def test_the_autoscaler_scales_the_engine_and_no_further_than_the_gateway_knows_backends() -> None:
    objects = rendered("autoscaling")
    scaler = find(objects, "HorizontalPodAutoscaler", "vllm")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "vllm"}
    (metric,) = scaler["metrics"]
    assert metric["external"]["metric"]["name"] == "kvgate_backlog_seconds"
    settings = Settings.model_validate(environment(find(objects, "Deployment")))
    assert scaler["maxReplicas"] == len(settings.backends)
    assert float(metric["external"]["target"]["value"]) < settings.queue_timeout_s / 2


@pytest.mark.parametrize("files", COMPOSE, ids=" over ".join)
def test_compose_files_parse_and_mount_what_is_there(files: tuple[str, ...]) -> None:
    paths = [DEPLOY / name for name in files]
    text = run(program("docker-compose"), *(word for path in paths for word in ("-f", str(path))), "config")
    services = yaml.safe_load(text)["services"]
    assert set(services) == {"kvgate", "engine", "prometheus", "grafana"}
    for path in paths:
        for service in yaml.safe_load(path.read_text())["services"].values():
            for mount in service.get("volumes", []):
                source = mount.split(":")[0]
                assert not source.startswith(".") or (path.parent / source).exists(), mount


def test_the_compose_gateway_is_given_time_to_drain() -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["kvgate"]
    settings = Settings.model_validate(service["environment"])
    assert settings.drain_delay_s + settings.drain_timeout_s < float(service["stop_grace_period"].rstrip("s"))


def test_the_dockerfile_is_clean(tmp_path: Path) -> None:
    hadolint = program("hadolint")
    run(hadolint, str(DEPLOY.parent / "Dockerfile"))
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN sudo apt-get install curl\n")
    with pytest.raises(AssertionError, match="DL3004"):
        run(hadolint, str(bad))
