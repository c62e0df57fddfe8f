"""Roster: all backends, who serves which model, and what may be planned with on each. Owns the tasks that watch them.

It promises:
* a pool is the set of backends that list a model; one that has not told its models yet serves any;
* with one pool an unknown model goes there, and the engine answers; with several, None, after the lists were read again;
* each task has a name, runs until `stop`, and is awaited there.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from gateway.backends.backend_spec import BackendSpec
from gateway.backends.probe import PROBE_LIMIT_S, Prober
from gateway.backends.view import BackendView, Pool
from gateway.backends.watch import Watch
from gateway.clock import Clock
from gateway.core.names import BackendName, PoolName
from gateway.core.reserve import Reserve

MODELS_AGAIN_S: Final = 5.0

__all__ = ["BackendSpec", "BackendView", "Pool", "Roster", "clean_url"]


def clean_url(url: str) -> tuple[str, tuple[str, ...]]:
    """The base of a backend's URL, and what was cut, in sentences: user info, which is not used, and a trailing /v1."""
    parts = urlsplit(url)
    said: list[str] = []
    netloc = parts.netloc.rpartition("@")[2]
    if netloc != parts.netloc:
        said.append("the user info in its URL is not used: KVGATE_BACKEND_KEY gives a key")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path.removesuffix("/v1").rstrip("/")
        said.append("the /v1 at the end of its URL is cut: the routes bring their own")
    return urlunsplit((parts.scheme, netloc, path, "", "")), tuple(said)


class Roster:
    """Everything that is known of the backends. Read on every request, so reading costs next to nothing."""

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        *,
        prober: Prober,
        clock: Clock,
        queue_timeout_s: float,
        on_change: Callable[[BackendView], None] = lambda view: None,
        on_reading: Callable[[BackendView], None] = lambda view: None,
        written_blocks: Callable[[BackendName], int] = lambda name: 0,
    ) -> None:
        """on_change: told each view in which budget, serving, foreign blocks, rules or models are new. on_reading: told the
        view after each round of questions that was answered.

        written_blocks: the most blocks that requests of ours can have written on a backend by now.
        """
        self._clock = clock
        self._prober = prober
        self._on_change = on_change
        self._watches: dict[BackendName, Watch] = {}
        # As they were asked for, until a view of some backend is another.
        self._pools: dict[tuple[BackendName, ...], Pool] = {}
        for spec in specs:
            self._watches[spec.name] = Watch(
                spec,
                prober.probe(spec.name, spec.url, key=spec.key, rank=spec.rank, metrics_url=spec.metrics_url),
                clock=clock,
                queue_timeout_s=queue_timeout_s,
                written_blocks=partial(written_blocks, spec.name),
                changed=self._changed,
                seen=self._pools.clear,
                read=on_reading,
            )
        self._tasks: list[asyncio.Task[None]] = []
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._members: Mapping[str, tuple[BackendName, ...]] = {}
        self._unlisted: tuple[BackendName, ...] = ()
        self._ready = False
        self._sort_pools()

    def __repr__(self) -> str:
        return "; ".join(str(view) for view in self.views())

    async def start(self) -> None:
        """Start watching. The first answers are not waited for: a backend may come later."""
        self._tasks = [
            asyncio.create_task(watch.run(), name=f"watch over backend {name}") for name, watch in self._watches.items()
        ]

    async def stop(self) -> None:
        """End all tasks and close the connections of our own questions. Raises nothing that a task ended with before."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._prober.close()

    async def look(self) -> None:
        """One round of questions to every backend at once; for whoever wants to know without watching."""
        await asyncio.gather(*(watch.look() for watch in self._watches.values()))

    @property
    def ready(self) -> bool:
        """Whether some budget was known once. Later outages do not take it back."""
        return self._ready

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Settings that contradict what an engine had when it was first seen, one sentence each with the backend's name."""
        return tuple(f"{name}: {watch.conflict}" for name, watch in self._watches.items() if watch.conflict is not None)

    def views(self) -> tuple[BackendView, ...]:
        return tuple(watch.view for watch in self._watches.values())

    def view(self, name: BackendName) -> BackendView:
        """Raises KeyError for an unknown backend."""
        return self._watches[name].view

    def watch(self, name: BackendName) -> Watch:
        """Raises KeyError for an unknown backend."""
        return self._watches[name]

    def pool_for(self, model: str | None) -> Pool | None:
        """The backends that serve `model`; None for a model that nobody lists where there is more than one pool."""
        members = self._members.get(model, self._unlisted) if model is not None else self._unlisted
        pool = self._pools.get(members)
        if pool is None and members:
            pool = Pool(PoolName("+".join(members)), tuple(self._watches[name].view for name in members))
            self._pools[members] = pool
        return pool

    def models(self) -> tuple[str, ...]:
        """Every listed model, in order."""
        return tuple(self._members)

    def pool_names(self) -> tuple[PoolName, ...]:
        """Of every pool that some model is served by, or that is served without a list of models."""
        pools = dict.fromkeys(self._members.values()) or {tuple(self._watches): None}
        return tuple(PoolName("+".join(members)) for members in pools)

    async def refresh_models(self) -> None:
        """Ask for all lists of models again, at most every 5 s and for at most 5 s; whoever comes meanwhile waits for the
        answers under way."""
        async with self._refreshing:
            if self._clock.now() < self._refreshed_at + MODELS_AGAIN_S:
                return
            with contextlib.suppress(TimeoutError):  # what came in time counts
                async with asyncio.timeout(PROBE_LIMIT_S):
                    await asyncio.gather(*(watch.look(anew=True) for watch in self._watches.values()))
            self._refreshed_at = self._clock.now()

    def note_connect_refused(self, name: BackendName) -> None:
        """A request could not connect to it."""
        self._watches[name].connect_refused()

    def note_alive(self, name: BackendName) -> None:
        """Bytes came from it."""
        self._watches[name].alive()

    def set_reserve(self, reserve: Reserve, name: BackendName | None = None) -> None:
        """Plan with another reserve, on one backend or on all. Raises KeyError, and ValueError where it cannot be had;
        then nothing has changed."""
        watches = list(self._watches.values()) if name is None else [self._watches[name]]
        for watch in watches:
            watch.check_reserve(reserve)
        for watch in watches:
            watch.set_reserve(reserve)

    def _changed(self, view: BackendView) -> None:
        self._ready = self._ready or view.capacity is not None
        self._sort_pools()
        self._on_change(view)

    def _sort_pools(self) -> None:
        """Who serves what. A backend that has not told its models stands in every pool; a model that nobody lists is served
        by the only pool, else by those who have not told theirs."""
        listed = {name: watch.view.models for name, watch in self._watches.items()}
        every_model = dict.fromkeys(model for models in listed.values() for model in models)
        self._members = {
            model: tuple(sorted(name for name, models in listed.items() if not models or model in models))
            for model in every_model
        }
        pools = set(self._members.values()) or {tuple(self._watches)}
        self._unlisted = next(iter(pools)) if len(pools) == 1 else tuple(name for name, models in listed.items() if not models)
