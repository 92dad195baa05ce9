"""magentic with its model for OpenAI."""

from magentic import AsyncStreamedStr, StreamedStr, chatprompt, prompt
from magentic.chat_model.message import UserMessage
from magentic.chat_model.openai_chat_model import OpenaiChatModel
from operations import KEY, URL, expect, expect_cancel, operation, report


def build_model(name: str) -> OpenaiChatModel:
    return OpenaiChatModel(name, base_url=URL, api_key=KEY)


@operation
def first_message() -> None:
    @prompt("hi there", model=build_model("echo"))
    def ask() -> str: ...

    expect(ask() == "hi there")


@operation
def streaming() -> None:
    @prompt("hi there", model=build_model("echo"))
    def ask() -> StreamedStr: ...

    expect("".join(ask()) == "hi there")


@operation
async def cancel() -> None:
    @chatprompt(UserMessage("x"), model=build_model("trickle"))
    async def ask() -> AsyncStreamedStr: ...

    async def read() -> None:
        async for _ in await ask():
            pass

    await expect_cancel(read)


if __name__ == "__main__":
    report()
