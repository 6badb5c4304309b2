"""Jobs of GitHub Actions and GitLab on this machine: their shell steps run, with stand-ins for what hosts them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
# The variables by which the plugin, git or pytest would notice the job or the shell that these tests run in.
FOREIGN = ("CI", "GIT_", "GITHUB_", "GITLAB_", "PYTEST_", "RUNNER_")
# Each appends its arguments to a file of its name. gh and curl also answer.
PROGRAMS = {
    "pip": "",
    "gh": """
if [[ ${GH_TOKEN-} != of-the-job ]]; then exit 4; fi
for argument; do
    case $argument in
        body=@*) cp "${argument#body=@}" "$RECORDS/body.md" ;;
        *.md) cp "$argument" "$RECORDS/body.md" ;;
    esac
done
if [[ " $* " == *" --jq "* ]]; then exec jq --raw-output "${@: -1}" "$RECORDS/comments.json"; fi
exit "${GH_STATUS:-0}"
""",
    "curl": """
while [[ $1 != --output ]]; do shift; done
cp "$RECORDS/of-main.json" "$2"
""",
}
COMMAND = re.compile(r"\$\{\{(.+?)\}\}")
CONTEXT = re.compile(r"\b(?:env|github|inputs|job|matrix|runner|steps|strategy)(?:\.[\w-]+)+")
INPUT = re.compile(r"\$\[\[ inputs\.([\w-]+) \]\]")


class Machine:
    """What a job finds: a clone to work in, an environment, programs that record their arguments, a place for files."""

    def __init__(self, clone: Path, outside: Path, **variables: str) -> None:
        self.clone, self.records, self.temporary = clone, outside / "records", outside / "temporary"
        programs = outside / "programs"
        for folder in (self.records, self.temporary, programs):
            folder.mkdir(parents=True)
        for name, answer in PROGRAMS.items():
            program = programs / name
            program.write_text(
                f'#!/usr/bin/env bash\nprintf "%s\\n" "$*" >>"$RECORDS/{name}"\n{answer}', encoding="utf-8"
            )
            program.chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
        # Both systems set CI. The plugins of this environment only make each process start more slowly.
        of_jobs = {"CI": "true", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        self.variables = {**own, **of_jobs, "PATH": path, "RECORDS": str(self.records), **variables}
        self.output = ""

    def bash(self, script: str, **variables: str) -> int:
        """Run a script as both systems do, and return its exit status."""
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.clone,
            env=self.variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=1200,
        )
        self.output += ended.stdout
        return ended.returncode

    def calls(self, program: str) -> list[str]:
        """Return the arguments of all calls of a program."""
        record = self.records / program
        return record.read_text(encoding="utf-8").splitlines() if record.exists() else []


# ---- GitHub Actions -------------------------------------------------------------------------------------------------


class GitHub:
    """A service that runs jobs, and keeps their caches and artifacts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, 0

    def run(self, machine: Machine, steps: Sequence[Any], github: Mapping[str, Any], **contexts: Any) -> bool:
        """Run the steps of a job; return whether it succeeds."""
        self.runs += 1
        machine.variables |= {
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "shop/shop",
            "RUNNER_TEMP": str(machine.temporary),
        }
        workflow = "octo/shop/.github/workflows/api.yml@refs/pull/7/merge"
        of_job = {"job": "budgets", "run_id": self.runs, "run_attempt": 1, "token": "of-the-job", **github}
        of_job["workflow_ref"] = workflow
        known = {"github": of_job, "strategy": {"job-index": 0}, "runner": {"temp": str(machine.temporary)}, **contexts}
        return Steps(self, machine, known).run(steps)

    def action(self, machine: Machine, name: str, inputs: Mapping[str, str]) -> dict[str, str]:
        """Do what an action of GitHub does, and return its outputs."""
        path = Path(machine.clone, inputs.get("path", "."))
        if name == "cache/restore":
            prefixes = (inputs["key"], *inputs["restore-keys"].split())
            caches = sorted(self.folder.glob("cache-*"), key=lambda cache: cache.stat().st_mtime_ns, reverse=True)
            for cache in caches:
                if cache.name.removeprefix("cache-").startswith(prefixes):
                    _copy(cache / path.name, path)
                    break
            return {"cache-primary-key": inputs["key"]}
        if name == "cache/save":
            _copy(path, self.folder / f"cache-{inputs['key']}" / path.name)
        elif name == "upload-artifact" and path.exists():
            # The files of a directory, or a file.
            _copy(path, self.artifact(inputs["name"]) / ("" if path.is_dir() else path.name))
        elif name == "download-artifact":
            for artifact in self.folder.glob("artifact-*"):
                _copy(artifact, path / artifact.name.removeprefix("artifact-"))
        else:
            assert name in ("checkout", "setup-python", "upload-artifact", "github-action-benchmark")
        return {}

    def artifact(self, name: str) -> Path:
        """Return the directory that keeps the files of an artifact."""
        return self.folder / f"artifact-{name}"


class Steps:
    """A sequence of steps, of a job or of a composite action, and the contexts that its expressions name."""

    def __init__(self, service: GitHub, machine: Machine, contexts: Mapping[str, Any]) -> None:
        self.service, self.machine, self.contexts = service, machine, {**contexts, "steps": {}}
        self.failed = False

    def run(self, steps: Sequence[Any], **variables: str) -> bool:
        """Run all whose conditions hold; return whether all succeed."""
        for step in steps:
            outcome, outputs = "skipped", {}
            if self._wanted(str(step.get("if", "success()"))):
                given = {name: self.text(value) for name, value in step.get("with", {}).items()}
                outcome = "success"
                if "run" in step:
                    own = {name: self.text(value) for name, value in step.get("env", {}).items()}
                    if self.machine.bash(self.text(step["run"]), **variables, **own):
                        outcome = "failure"
                elif step["uses"].startswith("pytest-mwbudget/"):
                    if not self._composite(given):
                        outcome = "failure"
                else:
                    name = step["uses"].partition("@")[0].partition("/")[2]
                    outputs = self.service.action(self.machine, name, given)
            self.failed = self.failed or outcome == "failure"
            self.contexts["steps"][step.get("id")] = {"outcome": outcome, "outputs": outputs}
        return not self.failed

    def _composite(self, given: Mapping[str, str]) -> bool:
        """Run the action of this repository."""
        action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
        assert set(given) <= set(action["inputs"])
        inputs = {name: one["default"] for name, one in action["inputs"].items()} | given
        steps = Steps(self.service, self.machine, {**self.contexts, "inputs": inputs})
        return steps.run(action["runs"]["steps"], GITHUB_ACTION_PATH=str(ROOT))

    def _wanted(self, condition: str) -> bool:
        """Say whether a step runs: unless its condition asks for the status, all steps before must have succeeded."""
        asks = re.search(r"\b(always|cancelled|failure|success)\(\)", condition)
        return bool(self._value(condition)) and (bool(asks) or not self.failed)

    def text(self, template: Any) -> str:
        """Put the values of expressions in their places."""
        return COMMAND.sub(lambda match: str(self._value(match[1])), str(template))

    def _value(self, expression: str) -> Any:
        """Evaluate an expression as Python, which writes three of the operators otherwise."""
        python = expression.strip().replace("&&", " and ").replace("||", " or ")
        python = CONTEXT.sub(lambda match: f"look({match[0]!r})", re.sub(r"!(?!=)", " not ", python))
        functions = {
            "look": self._look,
            "always": lambda: True,
            "cancelled": lambda: False,
            "success": lambda: not self.failed,
            "hashFiles": lambda name: "a hash" if (self.machine.clone / name).exists() else "",
        }
        return eval(python.strip(), functions)

    def _look(self, name: str) -> Any:
        value: Any = self.contexts
        for part in name.split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        return value


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


# ---- GitLab ---------------------------------------------------------------------------------------------------------


def run_gitlab(machine: Machine, job: Mapping[str, Any], **variables: str) -> bool:
    """Run the scripts of a job; return whether it succeeds."""
    of_job = {name: str(value) for name, value in job.get("variables", {}).items()}
    own = {"GITLAB_CI": "true", "CI_DEFAULT_BRANCH": "main", **of_job, **variables}
    status = machine.bash("\n".join((*job.get("before_script", ()), *job["script"])), **own)
    machine.bash("\n".join(job.get("after_script", ())), **own)
    return status == 0


def included(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pipeline with the template of this repository in place of the copy that it includes."""
    pipeline = dict(pipeline)
    for include in pipeline.pop("include", ()):
        assert include["local"].endswith("/mw-budget.yml")
        for name, job in template(**include["inputs"]).items():
            pipeline[name] = job | pipeline.get(name, {})
    return pipeline


def template(**inputs: str) -> dict[str, Any]:
    """Return the jobs of the template with these inputs."""
    text = (ROOT / "templates" / "mw-budget.yml").read_text(encoding="utf-8")
    header, jobs = yaml.safe_load_all(text)
    declared = header["spec"]["inputs"]
    assert set(inputs) <= set(declared)
    values = {name: one["default"] for name, one in declared.items() if "default" in one} | inputs
    for name, value in values.items():
        assert value in declared[name].get("options", [value])
    return _interpolated(jobs, values)


def _interpolated(value: Any, inputs: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _interpolated(one, inputs) for name, one in value.items()}
    if isinstance(value, list):
        return [_interpolated(one, inputs) for one in value]
    return INPUT.sub(lambda match: inputs[match[1]], value) if isinstance(value, str) else value


# ---- what the docs show ---------------------------------------------------------------------------------------------


def blocks(page: str) -> Iterator[Any]:
    """Yield the YAML that a page of the docs shows."""
    text = (ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield yaml.safe_load(block)
