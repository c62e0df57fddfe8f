"""One real client of Python in a process of its own: `python python_client.py NAME`, run by the interpreter that has it.

Reads a command a line (JSON) and answers each with a line: the text that the caller of the client got, or the error that it
saw. Nothing of the gateway is imported, and the clients keep all their defaults.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

# Imported by name, each in the process that needs it: they are installed nowhere else.
Command = dict[str, Any]


def litellm(command: Command, *, provider: str = "openai") -> str:
    module = import_module("litellm")
    answer = module.completion(
        model=f"{provider}/{command['model']}",
        api_base=f"{command['url']}/v1",
        api_key="any",
        messages=[{"role": "user", "content": command["prompt"]}],
        max_tokens=command["max_tokens"],
        stream=command["stream"],
    )
    if not command["stream"]:
        return str(answer.choices[0].message.content)
    return "".join(part.choices[0].delta.content or "" for part in answer)


def langchain_openai(command: Command) -> str:
    chat = import_module("langchain_openai").ChatOpenAI(
        model=command["model"], base_url=f"{command['url']}/v1", api_key="any", max_tokens=command["max_tokens"]
    )
    if not command["stream"]:
        return str(chat.invoke(command["prompt"]).content)
    return "".join(part.content for part in chat.stream(command["prompt"]))


def openai_agents(command: Command) -> str:
    agents = import_module("agents")
    agents.set_tracing_disabled(True)

    async def run() -> str:
        client = import_module("openai").AsyncOpenAI(base_url=f"{command['url']}/v1", api_key="any")
        agent = agents.Agent(
            name="tester",
            model=agents.OpenAIChatCompletionsModel(model=command["model"], openai_client=client),
            model_settings=agents.ModelSettings(max_tokens=command["max_tokens"]),
        )
        if not command["stream"]:
            return str((await agents.Runner.run(agent, command["prompt"])).final_output)
        run = agents.Runner.run_streamed(agent, command["prompt"])
        text = ""
        async for event in run.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        return text

    return asyncio.run(run())


def pydantic_ai(command: Command) -> str:
    async def run() -> str:
        provider = import_module("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{command['url']}/v1", api_key="any")
        model = import_module("pydantic_ai.models.openai").OpenAIChatModel(command["model"], provider=provider)
        agent = import_module("pydantic_ai").Agent(model, model_settings={"max_tokens": command["max_tokens"]})
        if not command["stream"]:
            return str((await agent.run(command["prompt"])).output)
        async with agent.run_stream(command["prompt"]) as answer:
            return "".join([text async for text in answer.stream_text(delta=True)])

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[Command], str]] = {
    "litellm": litellm,
    "litellm-hosted_vllm": partial(litellm, provider="hosted_vllm"),
    "langchain-openai": langchain_openai,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
}


def status_of(error: BaseException | None) -> int | None:
    """The HTTP status that the error tells, or one of those behind it."""
    while error is not None:
        status = getattr(error, "status_code", None)
        if isinstance(status, int):
            return status
        error = error.__cause__ or error.__context__
    return None


def main() -> None:
    talk = CLIENTS[sys.argv[1]]
    answers, sys.stdout = sys.stdout, sys.stderr  # what the clients print is none of our lines
    for line in sys.stdin:
        told: dict[str, Any] = {}
        try:
            told["text"] = talk(json.loads(line))
        except Exception as error:
            told["error"] = f"{type(error).__name__}: {error}"[:2_000]
            told["status"] = status_of(error)
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
