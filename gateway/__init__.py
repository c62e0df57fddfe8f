"""kvgate: live KV-cache admission control in front of LLM inference servers."""

from typing import Final

__version__: Final = "0.1.0"
