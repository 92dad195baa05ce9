"""DSPy with its model for LiteLLM."""

from __future__ import annotations

import json

import dspy
from operations import KEY, URL, expect, expect_cancel, operation, report


def build_model(name: str) -> dspy.LM:
    return dspy.LM(f"openai/{name}", api_base=URL, api_key=KEY, cache=False)


ANSWER = "[[ ## answer ## ]]\nRome\n\n[[ ## completed ## ]]"


def plan() -> str:
    return json.dumps([{"content": ANSWER}])


@operation
def first_message() -> None:
    answer = build_model("echo")("hi there")
    expect(answer == ["hi there"] or answer[0].get("text") == "hi there", answer)


@operation
async def streaming() -> None:
    predict = dspy.streamify(dspy.Predict("question -> answer"))
    pieces = []
    with dspy.context(lm=build_model("echo"), adapter=dspy.ChatAdapter()):
        try:
            async for piece in predict(question="x"):
                pieces.append(piece)
        except Exception as error:
            # The echo has not the form that the program expects; its pieces have arrived.
            expect(pieces, error)
    expect(len(pieces) > 1, pieces)


@operation
async def cancel() -> None:
    await expect_cancel(lambda: build_model("hang").acall("x"), "hang")


if __name__ == "__main__":
    report()
