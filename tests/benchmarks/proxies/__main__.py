"""python -m benchmarks.proxies: what kvgate and other proxies cost, round by round. See ../README.md."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.proxies.figures import Figures, figures_of
from benchmarks.proxies.peers import DIRECT, PEERS
from benchmarks.proxies.report import crowd_table, figures_table, machine, ratios_table, round_line
from benchmarks.proxies.scenarios import CROWD, FIRST_ROUND_ONLY, HALF, SCENARIOS, USUAL
from benchmarks.proxies.visits import Plan, Visit, visit


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if any visit has a fault, such as that kvgate declined somebody or let somebody wait: the figures are void."""
    given = _parser().parse_args(arguments)
    names = sorted(filter(_is_installed, given.proxies), key=lambda name: name != DIRECT)
    plan = Plan(given.seconds, given.grace, dict(given.setting))
    rounds: dict[str, list[Figures]] = {name: [] for name in names}
    visits: list[Visit] = []
    for number in range(given.rounds):
        scenarios = [name for name in given.scenarios if number == 0 or name not in FIRST_ROUND_ONLY]
        direct: Visit | None = None
        for name in names:
            seen = visit(name, scenarios, plan)
            direct = seen if name == DIRECT else direct
            visits.append(seen)
            rounds[name].append(figures_of(seen.measured, direct.measured if direct is not None else ()))
            _say(round_line(number, name, rounds[name][-1]))
            for each in seen.measured:
                if each.connections < SCENARIOS[each.scenario].connections:
                    _say(f"  {each.scenario}: {each.connections} connections are all that this limit on open files allows")
                for error in each.first_errors[:1]:
                    _say(f"  {each.scenario}: {each.errors} errors, such as: {error}")
    print(f"{machine()}\n\n{figures_table(rounds)}\n\n{ratios_table(rounds)}")
    if crowds := {seen.proxy: each for seen in visits for each in seen.measured if each.scenario == CROWD}:
        print(f"\n{crowd_table(crowds)}")
    faults = [f"{seen.proxy}: {fault}" for seen in visits for fault in seen.faults]
    if given.json is not None:
        record = {"machine": machine(), "faults": faults, "rounds": rounds, "visits": visits}
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
    for fault in faults:
        _say(f"VOID: {fault}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.proxies", description=__doc__)
    parser.add_argument("proxies", nargs="+", choices=(DIRECT, *PEERS), metavar="PROXY", help=", ".join((DIRECT, *PEERS)))
    parser.add_argument("--rounds", type=int, default=3, help="how often each is visited")
    names = f"comma-separated: {', '.join(SCENARIOS)}; without it all but {CROWD} and {HALF}"
    parser.add_argument("--scenarios", type=_scenarios, default=USUAL, help=names)
    parser.add_argument("--seconds", type=float, default=3.0, help="for which the clients of a scenario ask again")
    parser.add_argument("--grace", type=float, default=20.0, help="seconds beyond its end after which a scenario gives up")
    parser.add_argument(
        "--setting", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="kvgate's, in place of its default"
    )
    parser.add_argument("--json", type=Path, help="write all that was measured there as well")
    return parser


def _scenarios(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise argparse.ArgumentTypeError(f"no such scenario: {', '.join(unknown)}")
    return names


def _setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _is_installed(name: str) -> bool:
    """Whether it can be measured. Who is not is named, with what installs it."""
    if name == DIRECT or PEERS[name].program() is not None:
        return True
    _say(f"left out: {name} is not installed: {PEERS[name].installed_by}")
    return False


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # on the way out, what was started is ended
    sys.exit(main(sys.argv[1:]))
