"""Launchers by their names, each loaded only when it is asked for: one loads torch, another Ray."""

from __future__ import annotations

from typing import Literal

from srl.errors import UserError
from srl.launchers.base import Launcher

LauncherName = Literal["local", "serial", "ray"]


def launcher_named(name: LauncherName, address: str | None) -> Launcher:
    """A launcher of this name; `address` is that of a Ray cluster."""
    if address and name != "ray":
        raise UserError(f"--address is that of a Ray cluster; with --launcher {name} there is none")
    if name == "serial":
        from srl.launchers.serial import SerialLauncher

        return SerialLauncher()
    if name == "ray":
        return _ray_launcher(address)
    from srl.launchers.local import LocalLauncher

    return LocalLauncher()


def _ray_launcher(address: str | None) -> Launcher:
    try:
        from srl.launchers.ray import RayLauncher
    except ImportError as error:
        raise UserError(f"--launcher ray needs Ray and ZeroMQ: pip install 'srl[ray]' ({error})") from error
    return RayLauncher(address)
