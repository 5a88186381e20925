"""Installed parts of XLA's GPU compiler, and a check that they fit together.

Only files and package metadata are looked at: jax is not imported, so this answers
where jax cannot even start.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from lagom_jax.errors import Finding, ToolchainError

_SYSTEM_CUDA = Path("/usr/local/cuda")
_PACKAGES = (
    "jax",
    "jaxlib",
    "jax-cuda12-plugin",
    "jax-cuda12-pjrt",
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvcc",
    "nvidia-nvvm",
)
VERIFIED_ON = ("0.10.2", "0.12.0.1")
"""The versions of jax that everything here was tried with."""
PASSES_BY_JAXLIB = (0, 12)
"""The first release of jaxlib with functions of its own to register a pass."""
WITH_PASSES = "jax 0.10.2, or one from 0.12 on"
"""The versions for which `takes_passes` is true, in words."""
_ORDER_KEEPS_DONATION = (0, 12)
"""The first jaxlib that was seen to keep donation where a pass changes a schedule."""


@dataclasses.dataclass(frozen=True, slots=True)
class Toolchain:
    """The parts of the GPU compiler as they are installed.

    Example:
        >>> Toolchain({}, None, None, None).require()
        Traceback (most recent call last):
        ...
        lagom_jax.errors.ToolchainError: jax is not installed...
    """

    versions: dict[str, str]
    """By distribution name, those that are installed."""
    ptxas: Path | None
    """The assembler that XLA will start."""
    nvlink: Path | None
    """The linker that XLA will start if a module comes in parts; not needed here."""
    libdevice: Path | None
    """The mathematical functions that XLA links into kernels."""

    @classmethod
    def probe(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Looks at this Python environment and machine.

        Args:
            environ: The environment variables; this process's own by default.

        Returns:
            What would be used if a compile started now.

        Example:
            >>> "jaxlib" in Toolchain.probe().versions
            True
        """
        environ = os.environ if environ is None else environ
        roots = [root for root in (cuda_root(environ), _SYSTEM_CUDA) if root]
        return cls(
            versions=dict(_installed()),
            ptxas=_tool("ptxas", environ),
            nvlink=_tool("nvlink", environ),
            libdevice=next(
                filter(
                    Path.is_file, (r / "nvvm/libdevice/libdevice.10.bc" for r in roots)
                ),
                None,
            ),
        )

    def version(self, package: str) -> str:
        """The version of an installed distribution."""
        try:
            return self.versions[package]
        except KeyError:
            raise ToolchainError(
                f"{package} is not installed: {_install(self.versions)}"
            ) from None

    @property
    def plugins(self) -> tuple[str, ...]:
        """The CUDA plugins of jax that are installed."""
        names = ("jax-cuda12-plugin", "jax-cuda13-plugin")
        return tuple(name for name in names if name in self.versions)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Everything there is to say, in the order in which to put it right.

        Example:
            >>> [f.severity for f in Toolchain({}, None, None, None).findings]
            ['error', 'error', 'error', 'error']
        """
        return (
            *self._packages(),
            *self._equal_versions(),
            *self._assembler(),
        )

    def require(self) -> Self:
        """This toolchain, if a compile can be trusted to it.

        Raises:
            ToolchainError: Something is missing or the versions differ; the message
                says what to install.

        Example:
            >>> Toolchain.probe().require() == Toolchain.probe()
            True
        """
        errors = [f for f in self.findings if f.severity == "error"]
        if errors:
            raise ToolchainError(
                "\n".join(f"{error.text}: {error.remedy}" for error in errors)
            )
        return self

    def _packages(self) -> Iterator[Finding]:
        for package in ("jax", "jaxlib"):
            if package in self.versions:
                yield Finding("ok", f"{package} {self.versions[package]}")
            else:
                yield Finding(
                    "error", f"{package} is not installed", _install(self.versions)
                )
        jax = self.versions.get("jax")
        if jax and jax not in VERIFIED_ON:
            orderless = "" if takes_passes(jax) else "; plans leave the order to XLA"
            yield Finding(
                "warning",
                f"jax {jax} has not been tried with lagom_jax{orderless}",
                f"if something fails, install jax {' or '.join(VERIFIED_ON)}",
            )
        if not self.plugins:
            yield Finding(
                "error",
                "jax's CUDA plugin, which holds XLA's GPU compiler, is not installed",
                _install(self.versions),
            )
        if len(self.plugins) > 1:
            yield Finding(
                "warning",
                f"{' and '.join(self.plugins)} are both installed, and only one of "
                "them will be loaded",
                f"pip uninstall {self.plugins[1]} {_pjrt(self.plugins[1])}",
            )

    def _equal_versions(self) -> Iterator[Finding]:
        jaxlib = self.versions.get("jaxlib")
        for plugin in self.plugins:
            for package in (plugin, _pjrt(plugin)):
                found = self.versions.get(package)
                if found is None:
                    yield Finding(
                        "error", f"{package} is not installed", _install(self.versions)
                    )
                elif jaxlib and found != jaxlib:
                    yield Finding(
                        "error",
                        f"{package} is {found} but jaxlib is {jaxlib}; such a mix "
                        "compiles without a word, and makes every collective "
                        "synchronous",
                        f'pip install "{package}=={jaxlib}"',
                    )
                else:
                    yield Finding("ok", f"{package} {found}")

    def _assembler(self) -> Iterator[Finding]:
        package = _nvcc(self.plugins)
        if self.ptxas is None:
            yield Finding(
                "error",
                "no ptxas (NVIDIA's assembler) was found",
                f"pip install {package}",
            )
            return
        if "site-packages" in self.ptxas.parts or "dist-packages" in self.ptxas.parts:
            yield Finding("ok", f"ptxas from the Python package: {self.ptxas}")
        else:
            yield Finding(
                "warning",
                f"ptxas comes from this machine and not from a Python package: "
                f"{self.ptxas}; an environment made elsewhere may lack it",
                f"pip install {package}",
            )
        if self.libdevice is None:
            # jaxlib 0.10.2 and 0.12.0.1 compiled sin, exp, pow and atan2 without it.
            yield Finding(
                "warning",
                "libdevice.10.bc (NVIDIA's mathematical functions) was not found; some "
                "XLA versions need it",
                f"pip install {package}",
            )
        else:
            yield Finding("ok", f"libdevice: {self.libdevice}")


def _installed() -> Iterator[tuple[str, str]]:
    # Not for a process that compiles, which asks nothing: it imports what reads mail.
    from importlib.metadata import PackageNotFoundError, version

    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            yield package, version(package)


def _pjrt(plugin: str) -> str:
    return plugin.removesuffix("plugin") + "pjrt"


def _nvcc(plugins: tuple[str, ...]) -> str:
    if plugins == ("jax-cuda13-plugin",):
        return "nvidia-cuda-nvcc nvidia-nvvm"
    return "nvidia-cuda-nvcc-cu12"


def _install(versions: Mapping[str, str]) -> str:
    wanted = versions.get("jax") or versions.get("jaxlib")
    pin = f"=={wanted}" if wanted else ""
    return f'pip install "jax[cuda12-local]{pin}" nvidia-cuda-nvcc-cu12'


def cuda_root(environ: Mapping[str, str] | None = None) -> Path | None:
    """The CUDA directory that jax points XLA to.

    Args:
        environ: The environment variables; this process's own by default.

    Example:
        >>> cuda_root({"CUDA_ROOT": "/opt/cuda"}).as_posix()
        '/opt/cuda'
    """
    environ = os.environ if environ is None else environ
    if root := environ.get("CUDA_ROOT"):
        return Path(root)
    # jax asks for CUDA 13's package first, and stays with it even where it holds no
    # ptxas.
    for module in ("nvidia.cu13", "nvidia.cuda_nvcc"):
        locations = _locations(module)
        if locations:
            holding = (p for p in locations if (p / "bin" / "ptxas").exists())
            return next(holding, None)
    return None


def _locations(module: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return []
    return [Path(p) for p in (spec and spec.submodule_search_locations) or []]


def _tool(name: str, environ: Mapping[str, str]) -> Path | None:
    """The path at which XLA finds a tool: jax's CUDA, the PATH, the system's CUDA."""
    root = cuda_root(environ)
    folders = [root / "bin"] if root else []
    folders += [Path(p) for p in environ.get("PATH", "").split(os.pathsep) if p]
    folders.append(_SYSTEM_CUDA / "bin")
    for folder in folders:
        if (folder / name).is_file() and os.access(folder / name, os.X_OK):
            return folder / name
    return None


def takes_passes(jax: str) -> bool:
    """True if XLA's GPU compiler takes a pass of lagom_jax after its scheduler.

    Before `PASSES_BY_JAXLIB` the plugin has to be one whose C interface is known.

    Example:
        >>> takes_passes("0.10.2"), takes_passes("0.11.2"), takes_passes("0.12.0.1")
        (True, False, True)
    """
    return jax in VERIFIED_ON or release(jax) >= PASSES_BY_JAXLIB


def order_keeps_donation(jaxlib: str) -> bool:
    """True if results stay in donated arguments in another order of instructions.

    Args:
        jaxlib: Its version.

    Example:
        >>> order_keeps_donation("0.10.2"), order_keeps_donation("0.12.0.1")
        (False, True)
    """
    return release(jaxlib) >= _ORDER_KEEPS_DONATION


def release(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, to be compared.

    Example:
        >>> release("0.10.2") < release("0.12.0.1")
        True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
