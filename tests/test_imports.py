"""The directions of imports, and the few things that no room may use. Read from the source, so that nothing need be run."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parent.parent / "gateway"

# A file on the top level is a room of its own. What a room may import besides itself, the stdlib and other distributions.
EDGES: Final = frozenset({"core", "clock", "metrics"})
ADMISSION: Final = EDGES | {"books"}
RELAY: Final = ADMISSION | {"admission", "dialects", "batched"}
WEB: Final = RELAY | {"relay", "backends", "tokens", "keys_file", "logs"}
ASSEMBLY: Final = WEB | {"web", "settings", "backend_settings", "backend_specs", "lanes_file", "model_files", "tls"}
ALLOWED: Final[Mapping[str, frozenset[str]]] = {
    "core": frozenset(),
    "dialects": frozenset({"core"}),
    "tokens": frozenset({"core"}),
    "books": frozenset({"core"}),
    "admission": ADMISSION,
    "backends": EDGES,
    "replay": ADMISSION - {"clock", "metrics"} | {"admission", "simulator", "units"},
    "relay": RELAY,
    "web": WEB,
    "backend_specs": EDGES | {"backends", "tokens", "settings", "backend_settings", "model_files"},
    "room_values": ASSEMBLY,
    "assembly": ASSEMBLY | {"room_values", "collector", "open_files"},
    "collector": frozenset({"clock"}),
    "cli": ASSEMBLY | {"assembly", "setting_checks", "units", "simulator", "replay", "setting_values"},
    "simulator": frozenset(),
    "__main__": frozenset({"cli"}),
    # Leaves.
    "batched": frozenset(),
    "clock": frozenset(),
    "logs": frozenset(),
    "open_files": frozenset(),
    "tls": frozenset(),
    "units": frozenset(),
    "metrics": frozenset({"core", "series"}),
    "series": frozenset(),
    "model_files": frozenset(),
    "keys_file": frozenset({"core"}),
    "lanes_file": frozenset({"core", "units"}),
    "backend_settings": frozenset({"core"}),
    "setting_names": frozenset(),
    "setting_values": frozenset({"core", "units", "backend_settings"}),
    "settings": frozenset({"core", "units", "backend_settings", "setting_names", "setting_values"}),
    "setting_checks": frozenset(
        {
            "core",
            "units",
            "backend_settings",
            "keys_file",
            "lanes_file",
            "model_files",
            "setting_names",
            "setting_values",
            "settings",
        }
    ),
}
# Distributions that a few files alone may import.
ONLY_IN: Final = {
    "httpx": ("backends/probe.py",),
    "matplotlib": ("cli/plan_picture.py", "cli/replay_picture.py"),
}
# What a replay is made of does no I/O and reads no clock: only its reader opens files.
PURE_REPLAY: Final = frozenset({"asyncio", "logging", "time", "threading", "socket", "os", "random", "gzip", "pathlib"})
WITHOUT_WALL_CLOCK: Final = ("core", "books", "admission", "relay", "web", "clock")
DATES: Final = frozenset({PACKAGE / "relay" / "headers.py"})  # an answer that came without a Date header is given one
WALL_CLOCK: Final = frozenset(
    {
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
    }
)


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    """The dotted name of a module, such as gateway.core.ledger."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The room of a module of ours; None for `gateway` itself, which holds the version only."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else None


def modules() -> dict[str, Path]:
    return {name_of(path): path for path in sources()}


def imports_of(path: Path, ours: Mapping[str, Path]) -> Iterator[str]:
    """Every module that a file imports, wherever in the file; `from package import module` is the module."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=level) if level:
                pytest.fail(f"{path}: a relative import")
            case ast.ImportFrom(module=str(module), names=names):
                within = [f"{module}.{alias.name}" for alias in names]
                yield from (name if name in ours else module for name in within)
            case _:
                pass


def test_every_room_is_in_the_table_of_directions() -> None:
    rooms = {room for module in modules() if (room := room_of(module)) is not None}
    assert rooms <= set(ALLOWED)


@pytest.mark.parametrize("room", ALLOWED)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    ours = modules()
    reversed_imports = [
        f"{module} imports {imported}"
        for module, path in ours.items()
        if room_of(module) == room
        for imported in imports_of(path, ours)
        if imported.split(".")[0] == "gateway" and room_of(imported) not in {None, room, *ALLOWED[room]}
    ]
    assert not reversed_imports


def test_the_table_itself_has_no_way_back() -> None:
    for room, below in ALLOWED.items():
        assert not [other for other in below if room in ALLOWED[other]]


def test_the_core_needs_the_standard_library_only() -> None:
    ours = modules()
    foreign = [
        f"{module} imports {imported}"
        for module, path in ours.items()
        if room_of(module) == "core"
        for imported in imports_of(path, ours)
        if imported.split(".")[0] not in sys.stdlib_module_names | {"gateway"}
    ]
    assert not foreign


def test_the_core_neither_waits_nor_logs_nor_reads_a_clock() -> None:
    ours = modules()
    waiting = [
        module
        for module, path in ours.items()
        if room_of(module) == "core"
        and (
            {"asyncio", "logging", "time", "threading", "socket", "os"} & set(imports_of(path, ours))
            or any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in ast.walk(tree_of(path)))
        )
    ]
    assert not waiting


def test_the_simulator_knows_nothing_of_the_gateway() -> None:
    ours = modules()
    known = [
        f"{module} imports {imported}"
        for module, path in ours.items()
        if room_of(module) == "simulator"
        for imported in imports_of(path, ours)
        if imported.split(".")[0] == "gateway" and room_of(imported) != "simulator"
    ]
    assert not known


def test_a_replay_reads_no_clock_and_its_reader_alone_does_io() -> None:
    ours = modules()
    offenders = [
        f"{module} imports {used}"
        for module, path in ours.items()
        if room_of(module) == "replay" and path != PACKAGE / "replay" / "reader.py"
        for used in PURE_REPLAY & set(imports_of(path, ours))
    ]
    assert not offenders


@pytest.mark.parametrize(("distribution", "only_files"), ONLY_IN.items())
def test_a_distribution_is_imported_in_its_few_files_only(distribution: str, only_files: tuple[str, ...]) -> None:
    ours = modules()
    elsewhere = [
        module
        for module, path in ours.items()
        if path not in [PACKAGE / file for file in only_files]
        and distribution in {imported.split(".")[0] for imported in imports_of(path, ours)}
    ]
    assert not elsewhere


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    ours = modules()
    graph = {module: sorted({name for name in imports_of(path, ours) if name in ours}) for module, path in ours.items()}
    done: set[str] = set()

    def visit(module: str, on_the_way: tuple[str, ...]) -> None:
        assert module not in on_the_way, " -> ".join([*on_the_way, module])
        if module not in done:
            for imported in graph[module]:
                visit(imported, (*on_the_way, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_r5_no_middleware_stands_between_a_client_and_its_goodbye() -> None:
    """Starlette's BaseHTTPMiddleware, and the decorator that makes one, hide the client's disconnect from the endpoint."""
    offenders = []
    for path in sources():
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Name(id="BaseHTTPMiddleware") | ast.alias(name="BaseHTTPMiddleware"):
                    offenders.append(f"{path}:{node.lineno}")
                case ast.Attribute(attr="BaseHTTPMiddleware") | ast.Call(func=ast.Attribute(attr="middleware")):
                    offenders.append(f"{path}:{node.lineno}")
                case _:
                    pass
    assert not offenders


def test_a9_no_wall_clock_where_deadlines_and_durations_are_made() -> None:
    """A wall clock can jump by an hour; nothing may time out, or never time out, because of it."""
    offenders = []
    for module, path in modules().items():
        if room_of(module) in WITHOUT_WALL_CLOCK and path not in DATES:
            for node in ast.walk(tree_of(path)):
                match node:
                    case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=name):
                        used = {f"{owner}.{name}"}
                    case ast.ImportFrom(module="time", names=names):
                        used = {f"time.{alias.name}" for alias in names}
                    case _:
                        used = set()
                if used & WALL_CLOCK:
                    offenders.append(f"{path}: {used}")
    assert not offenders
