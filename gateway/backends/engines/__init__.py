"""How each engine reports itself, one file each."""

from gateway.backends.engines.engine import CountCall, Engine, EngineReport, LiveUse
from gateway.backends.engines.identify import AUTO, UNKNOWN_ENGINE, identify
from gateway.backends.engines.table import ENGINES

__all__ = ["AUTO", "ENGINES", "UNKNOWN_ENGINE", "CountCall", "Engine", "EngineReport", "LiveUse", "identify"]
