"""Compile a part of the scheduler with mypyc, when a wheel is built with HATCH_BUILD_HOOKS_ENABLE=1.

Off by default: the wheel is pure Python then, and nothing here is even imported. The modules are listed in
pyproject.toml, at this hook. They are compiled in a copy, so the sources stay what an editable installation runs.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "scheduler"
OUTPUT = "compiled"  # in the copy
# Run in the copy: setuptools compiles there what mypyc has written in C, which is a file for each module; it would
# compile one file after the other, and that takes minutes.
SETUP = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

class Parallel(build_ext):
    def build_extensions(self):
        compile = self.compiler.compile
        def compile_all(sources, **options):
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                return sum(threads.map(lambda source: compile([source], **options), sources), [])
        self.compiler.compile = compile_all
        super().build_extensions()

paths = ["--ignore-missing-imports", *sys.argv[1:]]
extensions = mypycify(
    paths, opt_level="2", debug_level="0", multi_file=True, target_dir="c", group_name="{PACKAGE}.compiled"
)
for extension in extensions:
    extension.include_dirs.append("c/{PACKAGE}")  # where the header of a group with this name is
setup(
    name="scheduler", packages=[], ext_modules=extensions, cmdclass={{"build_ext": Parallel}},
    script_args=["build_ext", "--build-lib", "{OUTPUT}"],
)
"""


class CompileHook(BuildHookInterface):
    """Adds compiled modules to the wheel, beside their sources, which tracebacks show."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless the installation is editable: that one runs the sources."""
        if version == "editable":
            return
        if missing := what_is_missing():
            self.app.abort(f"{missing}; or unset HATCH_BUILD_HOOKS_ENABLE: a wheel of pure Python needs no compiler")
        self._copy = Path(mkdtemp(prefix="drover-build-"))
        said = compile_in(self._copy, Path(self.root), modules_of(Path(self.root), self.config))
        if said is not None:
            shutil.rmtree(self._copy)
            self.app.abort(f"{said}\nmypyc cannot compile it: its words are above")
        output = self._copy / OUTPUT
        build_data["force_include"].update({str(path): str(path.relative_to(output)) for path in output.rglob("*.so")})
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        if version != "editable":
            shutil.rmtree(self._copy)


def compile_in(copy: Path, root: Path, modules: list[Path]) -> str | None:
    """Compile modules in a copy of the sources; return what was said about it if it failed."""
    shutil.copytree(root / PACKAGE, copy / PACKAGE)
    names = [str(path.relative_to(root)) for path in modules]
    done = subprocess.run(
        [sys.executable, "-c", SETUP, *names], cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return done.stdout.decode(errors="replace") if done.returncode else None


def what_is_missing() -> str:
    """Return what the machine lacks for compiling C, as a sentence, or nothing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"no C compiler: {compiler!r} is not in PATH; install it (Debian: gcc libc6-dev python3-dev)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.exists() else f"no {header}: install it (Debian: python3-dev)"


def modules_of(root: Path, config: dict[str, Any]) -> list[Path]:
    """Return the modules that are to be compiled. Errors: ValueError, a pattern that no module matches."""
    found = {pattern: sorted(root.glob(pattern)) for pattern in (*config["modules"], *config["except"])}
    if unmatched := [pattern for pattern, paths in found.items() if not paths]:
        raise ValueError(f"pyproject.toml: no module matches {', '.join(unmatched)}")
    kept = {path for pattern in config["except"] for path in found[pattern]} | set(root.rglob("__init__.py"))
    return [path for pattern in config["modules"] for path in found[pattern] if path not in kept]
