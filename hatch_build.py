"""Builds the tuner plugin with the wheel, and in place for an editable installation."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TunerPluginHook(BuildHookInterface):
    """Compiles the plugin where there is a C compiler, and says where there is none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Runs before a wheel is put together.

        Args:
            version: What is built: `standard` or `editable`.
            build_data: What hatchling is told about the wheel.
        """
        folder = Path(self.root, "lagom_jax", "nccl_plugin")
        build = _loaded(folder / "build.py")
        target = folder / build.NAME
        try:
            build.compile_plugin(target)
        except build.NoCompilerError as error:
            target.unlink(missing_ok=True)
            self.app.display_warning(
                f"lagom_jax is built without its NCCL tuner plugin: {error}"
            )
            return
        build_data["artifacts"].append(f"lagom_jax/nccl_plugin/{build.NAME}")
        # Nothing in it depends on Python's version, only on the machine's.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"


def _loaded(path: Path) -> Any:
    """The module by its file: the package itself needs jax, which is not here yet."""
    spec = importlib.util.spec_from_file_location("lagom_tuner_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
