"""Chat templates: messages to the one text a model was trained to answer.

A checkpoint states its template as a Jinja program, which runs sandboxed: it
may read the messages and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

Message = Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template and the special tokens it may name.

    >>> template = ChatTemplate(text="{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> template.render([{"role": "user", "content": "Hello"}])
    '<user>Hello'
    """

    text: str
    bos_token: str = ""
    eos_token: str = ""

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation; it holds its special tokens, so encode it without adding any.

        Raises ValueError for a message without a role or content, and for
        whatever the template itself refuses.
        """
        for number, message in enumerate(messages):
            for key in ("role", "content"):
                if not isinstance(message.get(key), str):
                    raise ValueError(f"chat message {number}: {key!r} must be a string, got {message!r}")
        if not messages:
            raise ValueError("a chat needs at least one message")
        # Here, so that models without chats need no jinja2.
        from specjax.data.chat_sandbox import render

        return render(
            self.text,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
        )


def choose_template(stated: Any, where: str) -> str | None:
    """The template among what a ``tokenizer_config.json`` states: a string, or several by name."""
    if stated is None or isinstance(stated, str):
        return stated
    named = {entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)}
    if not isinstance(named.get("default"), str):
        raise ValueError(f"{where}: chat_template has no 'default' among {sorted(map(str, named))}")
    return named["default"]
