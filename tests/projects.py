"""What the projects of inner runs have: a quick schedule, and a git repository of a small app."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

# For conftest.py of a run in another process: figures need not be precise, because budgets are far from the true costs.
QUICK = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from tests.apps import FAST, Scheduled

pytest_configure = Scheduled(**FAST).pytest_configure
"""

# No file of the user's configuration, and a name for commits.
CONFIG = (
    "-c",
    "user.name=n",
    "-c",
    "user.email=n@example.org",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)

# An ASGI app without a framework, whose layer spawns TASKS tasks and spins for SPIN_US microseconds.
APP = """
import asyncio
from time import perf_counter_ns

TASKS = {tasks}
SPIN_US = {spin_us}


async def endpoint(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"ok"}})


class Work:
    def __init__(self, app, tasks=TASKS, spin_us=SPIN_US):
        self.app = app
        self.tasks = tasks
        self.spin_us = spin_us

    async def __call__(self, scope, receive, send):
        end = perf_counter_ns() + 1000 * self.spin_us
        while perf_counter_ns() < end:
            pass
        for _ in range(self.tasks):
            await asyncio.ensure_future(asyncio.sleep(0))
        await self.app(scope, receive, send)


def create_app(**of_layer):
    return Work(endpoint, **of_layer)
"""
TEST = """
import pytest
from shop.app import create_app


@pytest.fixture
def mw_budget_app():
    return create_app()


@pytest.mark.mw_budget(tasks=0, lifespan=False)
def test_health(mw_budget):
    mw_budget.get("/health")
"""
PYTEST_INI = "[pytest]\ntestpaths = tests\npythonpath = src\n"


def heeds_interrupts() -> None:
    """Let a new process end at Ctrl-C, which background jobs of a shell ignore: the tests may run in such a job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Project:
    """A repository in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> str:
        run = subprocess.run(["git", *CONFIG, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    def put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def commit(self, message: str = "change") -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def app(tasks: int = 0, spin_us: int = 0) -> str:
    """The source of the app."""
    return APP.format(tasks=tasks, spin_us=spin_us)


def shop(root: Path) -> Project:
    """A repository of an app in `src`, with a marked test, on a branch `change` of `main`."""
    project = Project(root)
    project.put("src/shop/__init__.py", "")
    project.put("src/shop/app.py", app())
    project.put("tests/test_shop.py", TEST)
    project.put("pytest.ini", PYTEST_INI)
    project.put(".gitignore", "__pycache__/\n")
    project.commit("first")
    project.git("checkout", "--quiet", "-b", "change")
    return project
