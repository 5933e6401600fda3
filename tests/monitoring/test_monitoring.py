"""The examples of monitoring name nothing that a server does not export, and have the shapes that Prometheus and Grafana read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from corekit_openai_http import HttpOptions
from corekit_openai_http.frontend import OpenAiHttp
from prometheus_client.parser import text_string_to_metric_families
from promql import used

from corekit.compose.assemble import assemble

sys.path.insert(0, str(Path(__file__).parent.parent / "frontend"))
from http_live import Live, eventually, everything

FOLDER = Path(__file__).parents[2] / "examples/monitoring"
RULES: dict[str, Any] = yaml.safe_load((FOLDER / "rules.yml").read_text("utf-8"))
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana/dashboards/corekit.json").read_text("utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
OF_SCRAPES = {"instance", "job"}
"""Labels that Prometheus itself adds."""
UNITS = {"percentunit", "reqps", "s", "short", "cps", "Bps", "bytes"}

Exported = dict[str, set[str]]


@pytest.fixture(scope="module")
def exported() -> Iterator[Exported]:
    """Name -> labels, of a server with all that can be counted, after one request."""
    frontend = OpenAiHttp(HttpOptions(port=0))
    with assemble(everything(max_model_len=128, num_blocks=32), frontends=[frontend], progress=False) as assembly:
        live = Live(assembly.client)
        live.frontend = frontend
        with live:
            body = {"model": assembly.client.model.name, "prompt": "Q", "max_tokens": 4}
            assert live.http.post("/v1/completions", json=body).status_code == 200
            assert eventually(lambda: assembly.client.stats().num_finished.get("length", 0) + assembly.client.stats().num_finished.get("stop", 0) == 1)
            yield read(live.http)


def read(http: httpx.Client) -> Exported:
    found: Exported = {"up": set()}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[Any]:
    """Of rules, panels and variables."""
    rules = [(rule.get("alert") or rule["record"], rule["expr"]) for group in RULES["groups"] for rule in group["rules"]]
    panels = [(f"{panel['title']} {target['refId']}", target["expr"]) for panel in PANELS for target in panel["targets"]]
    return [pytest.param(expression, id=name) for name, expression in rules + panels]


RECORDED = {rule["record"]: {"model_name"} for group in RULES["groups"] for rule in group["rules"] if "record" in rule}


@pytest.mark.parametrize("expression", expressions())
def test_every_name_and_label_is_exported(expression: str, exported: Exported) -> None:
    there = exported | RECORDED
    asked = used(expression.replace("$__rate_interval", "5m"))
    names = [name for name, _ in asked.selectors]
    assert names
    for name, labels in asked.selectors:
        assert name in there
        assert labels <= there[name] | OF_SCRAPES
    assert asked.grouped <= set().union(*(there[name] for name in names)) | OF_SCRAPES
    if "histogram_quantile" in expression:
        assert "le" in asked.grouped, "a quantile needs the bounds"


@pytest.mark.parametrize("wrong", ["corekit_kv_usage > 0.9", "sum by (model) (corekit_num_requests_waiting)", 'rate(http_requests_total{code="500"}[5m])'])
def test_a_wrong_name_would_be_found(wrong: str, exported: Exported) -> None:
    with pytest.raises(AssertionError):
        test_every_name_and_label_is_exported(wrong, exported)


def test_variables_are_of_metrics_that_are_exported(exported: Exported) -> None:
    variables = {variable["name"]: variable for variable in BOARD["templating"]["list"]}
    assert list(variables) == ["DS_PROMETHEUS", "model_name", "instance"]
    assert variables["DS_PROMETHEUS"]["type"] == "datasource"
    for name in ("model_name", "instance"):
        variable = variables[name]
        assert variable["multi"] and variable["includeAll"]
        asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        assert asked[2] == name
        for metric, labels in used(asked[1]).selectors:
            assert {name} | labels <= exported[metric] | OF_SCRAPES


def test_the_dashboard_can_be_imported_anywhere() -> None:
    assert (BOARD["uid"], BOARD["title"], BOARD["tags"], BOARD["refresh"]) == ("corekit", "corekit", ["corekit", "llm"], "5s")
    assert isinstance(BOARD["schemaVersion"], int)
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"] == ["Overview", "Saturation", "Cache", "Tokens", "Engine", "Process"]
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert {target["datasource"]["uid"] for target in panel["targets"]} | {panel["datasource"]["uid"]} == {"${DS_PROMETHEUS}"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_rules_have_the_shape_that_prometheus_reads() -> None:
    assert set(RULES) == {"groups"}
    names = [group["name"] for group in RULES["groups"]]
    assert len(set(names)) == len(names)
    for rule in (rule for group in RULES["groups"] for rule in group["rules"]):
        if "record" in rule:
            assert set(rule) == {"record", "expr"}
            continue
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "page")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
    readme = (FOLDER / "README.md").read_text("utf-8")
    alerts = {rule["alert"] for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"`(Corekit\w+)`", readme)) == alerts, "README.md has a line for each alert"


def test_scrapes_and_provisioning_fit_together(tmp_path: Path) -> None:
    scrape = yaml.safe_load((FOLDER / "prometheus.yml").read_text("utf-8"))
    assert scrape["rule_files"] == ["rules.yml"]
    (job,) = scrape["scrape_configs"]
    assert (job["job_name"], job["metrics_path"], job["authorization"]["type"]) == ("corekit", "/metrics", "Bearer")
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{HttpOptions().port}"]}]
    (source,) = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((FOLDER / "grafana/provisioning/dashboards/corekit.yml").read_text("utf-8"))["providers"]
    assert provider["type"] == "file"
    if (promtool := shutil.which("promtool")) is not None:  # where it is installed, it has the last word
        for name in ("prometheus.yml", "rules.yml"):
            (tmp_path / name).write_text((FOLDER / name).read_text("utf-8"), "utf-8")
        (tmp_path / job["authorization"]["credentials_file"]).write_text("key", "utf-8")
        subprocess.run([promtool, "check", "config", str(tmp_path / "prometheus.yml")], check=True, timeout=60)
