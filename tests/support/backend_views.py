"""What is known of a backend, for tests that say only what matters to them."""

from dataclasses import replace
from typing import Any

from gateway.backends.view import BackendView
from gateway.core.engine_rules import EngineRules
from gateway.core.names import BackendName

_VIEW = BackendView(
    name=BackendName("a"),
    url="http://engine",
    engine="vllm",
    engine_version=None,
    models=("tiny",),
    healthy=True,
    serving=True,
    capacity=None,
    rules=EngineRules(),
    used_blocks=None,
    foreign_blocks=0,
    preemptions=None,
    running=None,
    waiting=None,
    state_text="",
)


def backend_view(name: str, **known: Any) -> BackendView:
    """A healthy backend of which nothing is known but `known`."""
    return replace(_VIEW, name=BackendName(name), **known)
