"""The command line. A command's module is imported when it is called, so that `kvgate settings` need not load a server."""

import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from gateway import __version__

COMMANDS: Final = ("serve", "demo", "plan", "check", "replay", "settings")


def main() -> None:
    """The entry point of `kvgate` and of `python -m gateway`."""
    app(prog_name="kvgate")


class _Commands(TyperGroup):
    """The table of commands, each loaded on its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        alone = typer.Typer(add_completion=False)
        alone.command(name=cmd_name)(_load(cmd_name))
        return typer.main.get_command(alone)


def _load(command: str) -> Callable[..., Any]:
    match command:
        case "serve":
            from gateway.cli.serve import serve

            return serve
        case "demo":
            from gateway.cli.demo import demo

            return demo
        case "plan":
            from gateway.cli.plan import plan

            return plan
        case "check":
            from gateway.cli.check import check

            return check
        case "replay":
            from gateway.cli.replay import replay

            return replay
        case _:
            from gateway.cli.settings import settings

            return settings


app: Final = typer.Typer(
    cls=_Commands,
    name="kvgate",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Live KV-cache admission control in front of LLM inference servers.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"kvgate {__version__}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass
