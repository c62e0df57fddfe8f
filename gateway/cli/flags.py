"""The three flags that stand for a variable of the environment, and the way from both to Settings."""

from typing import TYPE_CHECKING, Annotated, Never

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.settings import Settings

BackendsFlag = Annotated[
    str | None, typer.Option("--backends", help="url or name=url, comma-separated [KVGATE_BACKENDS]", show_default=False)
]
PortFlag = Annotated[
    str | None, typer.Option("--port", help="port of the inference routes, 0 for a free one [KVGATE_PORT]", show_default=False)
]
AdminPortFlag = Annotated[
    str | None,
    typer.Option(
        "--admin-port", help="port of metrics and state, 0 for a free one, or off [KVGATE_ADMIN_PORT]", show_default=False
    ),
]

WRONG_SETTINGS_EXIT = 2


def given_flags(*, backends: str | None, port: str | None, admin_port: str | None) -> dict[str, str]:
    """The flags that were given, by the variable that each stands for."""
    flags = {"KVGATE_BACKENDS": backends, "KVGATE_PORT": port, "KVGATE_ADMIN_PORT": admin_port}
    return {variable: text for variable, text in flags.items() if text is not None}


def settings_or_exit(flags: "Mapping[str, str]") -> "Settings":
    """The settings; or, if they cannot be right, one line for each problem and the end of the process."""
    from gateway.setting_checks import SettingsError, load_settings

    try:
        return load_settings(flags)
    except SettingsError as error:
        exit_with(*error.problems)


def exit_with(*problems: str) -> Never:
    """One line for each problem on standard error; then the process ends with the status for wrong settings."""
    for problem in problems:
        typer.echo(f"kvgate: {problem}", err=True)
    raise SystemExit(WRONG_SETTINGS_EXIT)
