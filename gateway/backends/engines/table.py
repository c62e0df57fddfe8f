"""The table of engines, in the order in which a server that nobody named is asked whether it is one."""

from collections.abc import Mapping
from typing import Final

from gateway.backends.engines.dynamo import Dynamo
from gateway.backends.engines.engine import Engine
from gateway.backends.engines.llama_cpp import LlamaCpp
from gateway.backends.engines.sglang import Sglang
from gateway.backends.engines.static import Static
from gateway.backends.engines.tgi import Tgi
from gateway.backends.engines.transformers import Transformers
from gateway.backends.engines.vllm import Vllm

# Static comes last: it takes every server that answers.
ENGINES: Final[Mapping[str, Engine]] = {
    engine.name: engine for engine in (Vllm(), Sglang(), Dynamo(), LlamaCpp(), Tgi(), Transformers(), Static())
}
