"""ChatTemplate: the text that a model's own chat template makes of a chat body, as the engine would make it.

Engines hand a body's messages to the template changed in a few ways; here it is done as vLLM 0.32 does it, which prepares
them as transformers' users expect (measured: equal to the token with tools, tool calls and parts). What is done otherwise
than there, or is not done at all, raises `CannotRender`, and the count is had from elsewhere.

Imported only where the extra `tokenizer` is installed. The template is the operator's, what it is filled with is not: it
runs in jinja's sandbox, in a process of its own (worker.py).
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

# Parts of a message that are text under some other name.
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
# vLLM takes such lines out of system messages, in ways that differ between versions.
_BILLING_HEADER: Final = "x-anthropic-billing-header"
_TOOL_FIELDS: Final = ("name", "description", "parameters")
_OPTIONAL_TOOL_FIELDS: Final = ("strict", "defer_loading")


class CannotRender(Exception):
    """This body is not rendered here. The message is for the operator and never repeats a value of the caller's."""


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a model is trained on; here only its content counts."""

    tags = {"generation"}  # noqa: RUF012  # jinja's own name for it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. `render` is pure but for templates that ask for today's date."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: bos_token, eos_token, ... as templates name them. Raises ValueError for a template with an error."""
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(source)
            tree = environment.parse(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be read: {error}") from None
        self._special_tokens = dict(special_tokens)
        self._takes_parts = _iterates_over_content(tree)
        self._knows_developer = "'developer'" in source or '"developer"' in source

    def render(self, body: Mapping[str, Any]) -> str:
        """The text of a chat. body: the decoded members that a template reads. Raises CannotRender."""
        if body.get("continue_final_message") or body.get("chat_template") is not None:
            raise CannotRender("a message to be continued, or a template of the caller's")
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise CannotRender("messages is no list")
        conversation = [self._message(message) for message in messages]
        if not self._knows_developer and any(message["role"] == "developer" for message in conversation):
            raise CannotRender("a developer message, and the template knows none")
        wanted = body.get("add_generation_prompt")
        values: dict[str, Any] = {**self._special_tokens}
        effort = body.get("reasoning_effort")
        if effort is not None:
            values |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        kwargs = body.get("chat_template_kwargs")
        if kwargs is not None:
            if not isinstance(kwargs, dict):
                raise CannotRender("chat_template_kwargs is no object")
            values |= kwargs
        values |= {
            "messages": conversation,
            "tools": _tools(body.get("tools")),
            "documents": body.get("documents"),
            "add_generation_prompt": True if wanted is None else bool(wanted),
        }
        try:
            return self._template.render(values)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError, RecursionError) as error:
            # A template may refuse a conversation, and so would the engine's.
            raise CannotRender(f"the template raised {type(error).__name__}") from None

    def _message(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, dict) or not isinstance(given.get("role"), str):
            raise CannotRender("a message without a role")
        role = given["role"]
        message: dict[str, Any] = {"role": role, "content": self._content(role, given.get("content"))}
        if role == "assistant":
            calls = given.get("tool_calls")
            if calls is not None and calls != []:
                message["tool_calls"] = _tool_calls(calls)
            if given.get("reasoning") is not None:
                message["reasoning"] = message["reasoning_content"] = given["reasoning"]
            if given.get("reasoning_content") is not None:
                raise CannotRender("reasoning_content, which engines' versions treat differently")
        elif role == "tool" and "tool_call_id" in given:
            message["tool_call_id"] = given["tool_call_id"]
        elif role == "developer":
            message["tools"] = given.get("tools")
        if isinstance(given.get("name"), str):
            message["name"] = given["name"]
        return message

    def _content(self, role: str, content: Any) -> str | list[dict[str, Any]]:
        if content is None:
            parts: list[str] = []
        elif isinstance(content, str):
            parts = [content]
        elif isinstance(content, list):
            parts = [_part_text(part) for part in content]
        else:
            raise CannotRender("a content that is neither text nor parts")
        if role == "system" and any(part.startswith(_BILLING_HEADER) for part in parts):
            raise CannotRender("a line that the engine takes out")
        if self._takes_parts and role != "tool":
            return [{"type": "text", "text": part} for part in parts]
        return "\n".join(parts)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        name = _TEXT_PARTS.get(part.get("type", "text") if isinstance(part.get("type", "text"), str) else "")
        text = part.get(name) if name is not None else None
        if isinstance(text, str):
            return text
    raise CannotRender("a part that is no text")


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    """Tool schemas as vLLM prints them: their known members, in its order, with null for those that are not there."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise CannotRender("tools is no list")
    shown: list[dict[str, Any]] = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise CannotRender("a tool that is no function")
        if tool.get("defer_loading") is not None:
            raise CannotRender("a tool that is loaded later")
        told = {name: function.get(name) for name in _TOOL_FIELDS}
        told |= {name: function[name] for name in _OPTIONAL_TOOL_FIELDS if function.get(name) is not None}
        shown.append({"type": "function", "function": told})
    return shown


def _tool_calls(calls: Any) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects: what is no object in JSON becomes an empty one."""
    if not isinstance(calls, list):
        raise CannotRender("tool_calls is no list")
    shown = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise CannotRender("a tool call that is no function's")
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                arguments = None
        shown.append({**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}})
    return shown


def _iterates_over_content(tree: jinja2.nodes.Template) -> bool:
    """Whether the template takes a content apart: then it is given parts, else one text."""
    names = {"content"}
    for assignment in tree.find_all(jinja2.nodes.Assign):
        if _is_content(assignment.node, names) and isinstance(assignment.target, jinja2.nodes.Name):
            names.add(assignment.target.name)
    return any(_is_content(loop.iter, names) for loop in tree.find_all(jinja2.nodes.For))


def _is_content(node: jinja2.nodes.Node | None, names: set[str]) -> bool:
    match node:
        case jinja2.nodes.Name(name=name):
            return name in names
        case jinja2.nodes.Getattr(attr=attribute):
            return attribute == "content"
        case jinja2.nodes.Getitem(arg=jinja2.nodes.Const(value=value)):
            return bool(value == "content")
        case jinja2.nodes.Filter(node=inner) | jinja2.nodes.Test(node=inner):
            return _is_content(inner, names)
        case _:
            return False


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as transformers' templates expect it: jinja's own filter escapes what HTML would take for its own."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
