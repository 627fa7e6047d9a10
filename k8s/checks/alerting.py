"""The alerts, by Prometheus's own promtool: they parse, and each has a case that fires and one that stays quiet."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from k8s.checks.rendering import K8S

CASES = Path(__file__).with_name("alerts.yaml")
RULES = K8S / "components" / "monitoring" / "rules.yaml"
_FEWEST_WORDS = 20


def problems(promtool: Path) -> Iterator[str]:
    """What is wrong, a line each."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["spec"]
    names = {rule["alert"] for group in groups["groups"] for rule in group["rules"]}
    cases = yaml.safe_load(CASES.read_text("utf-8"))
    wanted = [one for test in cases["tests"] for one in test.get("alert_rule_test", [])]
    for said, tested in (
        ("fires", {one["alertname"] for one in wanted if one["exp_alerts"]}),
        ("stays quiet", {one["alertname"] for one in wanted if not one["exp_alerts"]}),
    ):
        yield from (f"no case in {CASES.name} in which {name} {said}" for name in sorted(names - tested))
    for rule in (rule for group in groups["groups"] for rule in group["rules"]):
        if len(rule["annotations"].get("runbook", "").split()) < _FEWEST_WORDS:
            yield f"{rule['alert']} does not say what to do"
            return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "all.yaml").write_text(yaml.safe_dump(groups), "utf-8")
        (Path(folder) / "alerts.yaml").write_text(CASES.read_text("utf-8"), "utf-8")
        # Cases state summaries, which have numbers in them; what to do is a text without any.
        for rule in (rule for group in groups["groups"] for rule in group["rules"]):
            del rule["annotations"]["runbook"]
        (Path(folder) / "rules.yaml").write_text(yaml.safe_dump(groups), "utf-8")
        for command in (["check", "rules", "all.yaml"], ["test", "rules", "alerts.yaml"]):
            done = subprocess.run([promtool, *command], check=False, capture_output=True, text=True, cwd=folder)
            if done.returncode != 0:
                yield f"promtool {' '.join(command)}: {done.stdout}{done.stderr}"
