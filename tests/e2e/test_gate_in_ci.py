"""What CI systems get: templates against published schemas, their shell parts run for real, the image's steps run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import sits

ROOT = Path(__file__).parents[2]
SCHEMAS = ROOT / "tests" / "data" / "schemas"
GITLAB = ROOT / "ci" / "gitlab" / "sits-validate.yml"
ACTION = ROOT / "ci" / "github" / "sits-validate" / "action.yml"


def documents(path: Path) -> list[Any]:
    class Loader(yaml.SafeLoader):
        """``on`` is a key of GitHub's files, not a boolean."""

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:bool"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
    return list(yaml.load_all(path.read_text(encoding="utf-8"), Loader))


@pytest.mark.parametrize(
    ("path", "schema"),
    [
        ("ci/gitlab/sits-validate.yml", "gitlab-ci"),
        ("ci/gitlab/example.gitlab-ci.yml", "gitlab-ci"),
        ("ci/github/sits-validate/action.yml", "github-actions"),
        ("ci/github/example-workflow.yml", "github-workflows"),
    ],
)
def test_templates_fit_the_published_schemas(path: str, schema: str) -> None:
    validator = jsonschema.Draft7Validator(json.loads((SCHEMAS / f"{schema}.json").read_text(encoding="utf-8")))
    for document in documents(ROOT / path):
        errors = [f"{list(error.path)}: {error.message}" for error in validator.iter_errors(document)]
        assert not errors, errors


def gitlab_job() -> dict[str, Any]:
    """The job of the template with the defaults of its inputs filled in."""
    header, _ = documents(GITLAB)
    text = GITLAB.read_text(encoding="utf-8").split("\n---\n")[1]
    for name, spec in header["spec"]["inputs"].items():
        text = text.replace(f"$[[ inputs.{name} ]]", spec["default"])
    assert "$[[" not in text
    (job,) = yaml.safe_load(text).values()
    return job


def test_the_gitlab_job_wires_reports_and_the_review_mark() -> None:
    job = gitlab_job()
    assert job["stage"] == "test"
    assert job["allow_failure"] == {"exit_codes": 2}
    assert job["artifacts"]["when"] == "always"
    script = job["script"][0]
    for report in job["artifacts"]["reports"].values():
        assert f"--output {report}" in script


@pytest.fixture
def checkout(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A project with a good result, and ``sits-validate`` on its PATH."""
    spec = util.spec_from_file_location("gate_workshop", ROOT / "tests" / "unit" / "validate" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules["gate_workshop"] = module
    spec.loader.exec_module(module)
    project = tmp_path / "project"
    workshop = module.Workshop(project)
    workshop.run("good", requests=40)
    workshop.run("slow", requests=40, ttft=500)
    workshop.config("result: good\nrules:\n  ttft: {p50: 150 ms}\n", ".sits/config.yaml")
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "sits-validate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sits.cli.validate "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    source = str(Path(sits.__file__).parents[1])
    return project, {"PATH": path, "PYTHONPATH": source, "HOME": str(tmp_path), "LANG": "C"}


def shell(lines: str, project: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    arguments = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", lines]
    return subprocess.run(arguments, cwd=project, env=environment, capture_output=True, text=True, timeout=60)


def test_the_gitlab_script_runs_and_leaves_its_artifacts(checkout: tuple[Path, dict[str, str]]) -> None:
    project, environment = checkout
    job = gitlab_job()
    environment |= job["variables"]
    lines = "\n".join([*job["before_script"], *job["script"]])
    assert shell(lines, project, environment).returncode == 0
    done = shell(lines, project, {**environment, "SITS_ARGUMENTS": "--result slow"})
    assert done.returncode == 1, done.stderr
    assert "CRITICAL" in done.stdout
    issues = json.loads((project / "sits-validate/codequality.json").read_text(encoding="utf-8"))
    assert [(i["location"]["path"], i["location"]["lines"]["begin"]) for i in issues] == [(".sits/config.yaml", 3)]
    assert (project / "sits-validate/junit.xml").exists()
    (project / ".sits/config.yaml").write_text("rulez: 1\n", encoding="utf-8")
    assert shell(lines, project, environment).returncode == 3


def github_steps(project: Path, environment: dict[str, str], **inputs: str) -> tuple[list[int], str]:
    """Run the shell steps of the action as a runner would. Returns their exit codes and what they printed."""
    (action,) = documents(ACTION)
    given = {name: spec["default"] for name, spec in action["inputs"].items()} | inputs
    files = {name: project / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("", encoding="utf-8")
    codes, printed = [], ""
    for step in action["runs"]["steps"]:
        if "run" not in step:
            continue
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        values = {}
        for name, value in step.get("env", {}).items():
            value = re.sub(r"\$\{\{ inputs\.([a-z-]+) \}\}", lambda found: given[found[1]], value)
            values[name] = value.replace("${{ steps.validate.outputs.exit-code }}", outputs.get("exit-code", ""))
        paths = {name: str(path) for name, path in files.items()}
        done = shell(step["run"], project, {**environment, **paths, **values})
        codes.append(done.returncode)
        printed += done.stdout
    return codes, printed


def test_the_github_action_annotates_summarises_and_gates(checkout: tuple[Path, dict[str, str]]) -> None:
    project, environment = checkout
    codes, printed = github_steps(project, environment)
    assert codes == [0, 0, 0]
    codes, printed = github_steps(project, environment, arguments="--result slow")
    assert codes == [0, 0, 1]
    assert "::error file=.sits/config.yaml,line=3," in printed
    assert "sits-validate: CRITICAL" in (project / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    sarif = json.loads((project / "sits-validate/report.sarif").read_text(encoding="utf-8"))
    assert sarif["runs"][0]["results"][0]["ruleId"] == "SITS-C001"
    config = project / ".sits/config.yaml"
    config.write_text(config.read_text().replace("150 ms}", "150 ms, severity: warn}"), encoding="utf-8")
    codes, printed = github_steps(project, environment, arguments="--result slow")
    assert codes == [0, 0, 0]
    assert "::warning " in printed
    assert "exit-code=2" in (project / "GITHUB_OUTPUT").read_text()
    assert github_steps(project, environment, arguments="--result slow", **{"fail-on": "warn"})[0][-1] == 1
    assert github_steps(project, environment, config="nowhere.yaml")[0][-1] == 3


def test_untrusted_inputs_reach_the_shell_only_through_the_environment() -> None:
    (action,) = documents(ACTION)
    for step in action["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_the_pre_commit_hook_checks_configurations(checkout: tuple[Path, dict[str, str]]) -> None:
    project, environment = checkout
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {"id", "name", "entry", "language", "files"} <= set(hook)
    assert re.search(hook["files"], ".sits/config.yaml")
    assert not re.search(hook["files"], "docs/sits/config.yaml")
    assert shell(f"{hook['entry']} .sits/config.yaml", project, environment).returncode == 0
    (project / ".sits/config.yaml").write_text("rules: {tft: {p50: 1}}\n", encoding="utf-8")
    done = shell(f"{hook['entry']} .sits/config.yaml", project, environment)
    assert done.returncode == 3
    assert "Did you mean 'ttft'?" in done.stderr


def test_the_dockerfile_is_slim_and_drops_root() -> None:
    text = (ROOT / "ci" / "Dockerfile").read_text(encoding="utf-8")
    stages = text.split("\nFROM ")
    final = stages[-1]
    assert len(stages) >= 2
    assert re.search(r"^USER [1-9][0-9]*:[1-9][0-9]*$", final, re.MULTILINE)
    assert 'ENTRYPOINT ["sits-validate"]' in final
    assert "torch" not in text.split("\n", 1)[1]
    assert ":latest" not in text
    assert "ADD " not in text


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_the_dockerfile_passes_hadolint() -> None:
    done = subprocess.run(["hadolint", str(ROOT / "ci" / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_steps_of_the_image_give_a_gate_without_torch(tmp_path: Path) -> None:
    """The build stage in a plain virtual environment. Needs a package index (or a cache); skips without one."""
    home = tmp_path / "sits"
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    source = tmp_path / "src"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    install = [str(home / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(source)]
    done = subprocess.run(install, env=environment, capture_output=True, text=True, timeout=240)
    if done.returncode != 0 and re.search("Could not find a version|Connection|Temporary failure|index", done.stderr):
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    program = str(home / "bin/sits-validate")
    listed = subprocess.run([program, "--list-rules"], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert "SITS-C001" in listed.stdout
    missing = subprocess.run([program], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert missing.returncode == 3
    assert not list(home.glob("lib/*/site-packages/torch*"))
    size = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / 1e6
    assert size < 250, f"{size:.0f} MB"
