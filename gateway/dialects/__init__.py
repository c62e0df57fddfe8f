"""Wire formats: one file each, one table. Bytes and values in, values out."""

from collections.abc import Mapping

from gateway.dialects.anthropic_messages import AnthropicMessages
from gateway.dialects.dialect import Dialect
from gateway.dialects.llama_cpp import LlamaCppCompletion
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.openai_embeddings import OpenAIEmbeddings
from gateway.dialects.openai_responses import OpenAIResponses

DIALECTS: Mapping[str, Dialect] = {
    dialect.path: dialect
    for dialect in (
        OpenAIChat(),
        OpenAICompletions(),
        OpenAIResponses(),
        OpenAIEmbeddings(),
        AnthropicMessages(),
        LlamaCppCompletion("/completion"),
        LlamaCppCompletion("/completions"),
    )
}
