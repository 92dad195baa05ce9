"""Chat completions with OpenAI's library for Python."""

from __future__ import annotations

import json
import threading
from typing import Any

import openai
from openai import OpenAI
from operations import (
    ask_as_administrator,
    due,
    expect,
    expect_error,
    operation,
    report,
    wait_for_status,
)
from pydantic import BaseModel

client = OpenAI()
HELLO: Any = [{"role": "user", "content": "hello"}]
ADA = '{"name": "Ada", "age": 36}'


class Person(BaseModel):
    name: str
    age: int


def chat(text: str = "hello", model: str = "echo", **options: Any) -> str:
    messages: Any = [{"role": "user", "content": text}]
    answer = client.chat.completions.create(model=model, messages=messages, **options)
    return answer.choices[0].message.content or ""


def ask(messages: Any, model: str = "history", **options: Any) -> list[list[str]]:
    """Return the messages that the model of the agent has received, without its instructions."""
    answer = client.chat.completions.create(model=model, messages=messages, **options)
    return [
        [role, text]
        for role, text in json.loads(answer.choices[0].message.content or "")
        if role not in ("system", "developer")
    ]


# Models


@operation
def models_list() -> None:
    expect({"echo", "crew"} <= {model.id for model in client.models.list()})


@operation
def models_retrieve() -> None:
    expect(client.models.retrieve("echo").object == "model")


@due
def models_retrieve_unknown() -> None:
    with expect_error(openai.NotFoundError, "model_not_found"):
        client.models.retrieve("gpt-4o")


# Answers


@operation
def answer() -> None:
    expect(chat() == "hello")


@operation
def fields() -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO)
    expect(answer.id.startswith("chatcmpl-") and answer.created > 0 and answer.model == "echo")
    expect(answer.choices[0].finish_reason == "stop" and answer.choices[0].index == 0)


@operation
def usage() -> None:
    usage = client.chat.completions.create(model="echo", messages=HELLO).usage
    expect(usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens)


@operation
def system_message() -> None:
    system: Any = {"role": "system", "content": "Be brief."}
    expect(ask([system, *HELLO]) == [["user", "Be brief."], ["user", "hello"]])


@operation
def developer_message() -> None:
    developer: Any = {"role": "developer", "content": "Be brief."}
    expect(ask([developer, *HELLO]) == [["user", "Be brief."], ["user", "hello"]])


@operation
def history() -> None:
    first = client.chat.completions.create(model="echo", messages=HELLO).choices[0].message
    asked = ask([*HELLO, first, {"role": "user", "content": "more"}])
    expect(asked == [["user", "hello"], ["assistant", "hello"], ["user", "more"]], asked)


@operation
def history_of_dumped_messages() -> None:
    first = client.chat.completions.create(model="echo", messages=HELLO).choices[0].message
    asked = ask([*HELLO, first.model_dump(), {"role": "user", "content": "more"}])
    expect(asked == [["user", "hello"], ["assistant", "hello"], ["user", "more"]], asked)


@operation
def parts_of_text() -> None:
    parts: Any = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    expect(ask([{"role": "user", "content": parts}]) == [["user", "one\ntwo"]])


@operation
def unicode_and_length() -> None:
    text = "Grüße 🌍 " * 2_000
    expect(chat(text).strip() == text.strip())


@operation
def name_of_the_user() -> None:
    expect(ask([{"role": "user", "name": "Ada", "content": "hello"}])[-1][1].endswith("hello"))


@operation
def metadata() -> None:
    expect(chat(metadata={"topic": "demo"}, store=True) == "hello")


@operation
def user() -> None:
    expect(chat(user="user-1", safety_identifier="s-1", prompt_cache_key="k-1") == "hello")


@operation
def defaults_of_settings() -> None:
    expect(chat(n=1, temperature=1, top_p=1, presence_penalty=0, frequency_penalty=0) == "hello")


@operation
def text_format() -> None:
    expect(chat(response_format={"type": "text"}, modalities=["text"]) == "hello")


@operation
def raw_response() -> None:
    raw = client.chat.completions.with_raw_response.create(model="echo", messages=HELLO)
    expect(raw.parse().choices[0].message.content == "hello" and raw.headers["x-run-id"])


@operation
def request_id() -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO)
    expect(answer._request_id)


@operation
def organization_and_project() -> None:
    with OpenAI(organization="org-1", project="proj-1") as other:
        answer = other.chat.completions.create(model="echo", messages=HELLO)
    expect(answer.choices[0].message.content == "hello")


@operation
def session_of_a_header() -> None:
    headers = {"X-Session-ID": "chat-session"}
    ask([{"role": "user", "content": "one"}], extra_headers=headers)
    asked = ask([{"role": "user", "content": "two"}], extra_headers=headers)
    expect([text for role, text in asked if role == "user"] == ["one", "two"], asked)


@operation
def with_a_team() -> None:
    expect(chat("echo: hello", model="crew"))


@operation
def with_tools_of_the_agent() -> None:
    expect(chat('{"a": 2, "b": 3}', model="tool-add") == "5")


@operation
def prefilled_answer() -> None:
    messages: Any = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    expect(client.chat.completions.create(model="echo", messages=messages))


@operation
def system_message_alone() -> None:
    expect(ask([{"role": "system", "content": "Greet the user."}]))


@operation
def image() -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    text: Any = {"type": "text", "text": "What is this?"}
    messages: Any = [{"role": "user", "content": [text, image]}]
    expect(client.chat.completions.create(model="echo", messages=messages))


@operation
def several_answers() -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO, n=2)
    expect(len(answer.choices) == 2)


@operation
def log_probabilities() -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO, logprobs=True)
    expect(answer.choices[0].logprobs)


@operation
def with_a_workflow() -> None:
    expect(chat(model="line") == "hello")


# Streams


def stream(**options: Any) -> Any:
    arguments: Any = {"model": "echo", "messages": HELLO} | options
    return client.chat.completions.create(stream=True, **arguments)


@operation
def stream_text() -> None:
    messages = [{"role": "user", "content": "one two three"}]
    texts = [chunk.choices[0].delta.content or "" for chunk in stream(messages=messages)]
    expect("".join(texts) == "one two three", texts)


@operation
def stream_usage() -> None:
    *_, last = stream(stream_options={"include_usage": True})
    expect(last.usage.total_tokens > 0 and last.choices == [])


@operation
def stream_roles_and_end() -> None:
    chunks = list(stream())
    expect(chunks[0].choices[0].delta.role == "assistant")
    expect(chunks[-1].choices[0].finish_reason == "stop")


@operation
def stream_of_a_team() -> None:
    chunks = stream(model="crew", messages=[{"role": "user", "content": "echo: hi"}])
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


@operation
def stream_lines() -> None:
    streaming = client.chat.completions.with_streaming_response
    with streaming.create(model="echo", messages=HELLO, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    expect(lines[-1] == "data: [DONE]")


@operation
def helper_events() -> None:
    with client.chat.completions.stream(model="echo", messages=HELLO) as events:
        texts = [event.delta for event in events if event.type == "content.delta"]
    expect("".join(texts) == "hello")


@operation
def helper_final_completion() -> None:
    with client.chat.completions.stream(model="echo", messages=HELLO) as events:
        final = events.get_final_completion()
    expect(final.choices[0].message.content == "hello")


@operation
def helper_until_done() -> None:
    with client.chat.completions.stream(model="echo", messages=HELLO) as events:
        events.until_done()
    expect(events.current_completion_snapshot.choices[0].finish_reason == "stop")


@operation
def stream_closed_cancels_the_run() -> None:
    chunks = stream(model="trickle", extra_headers={"X-Session-ID": "closed"})
    texts = [next(chunks).choices[0].delta.content for _ in range(4)]
    chunks.close()
    expect(len(set(texts)) > 2, texts)
    wait_for_status("closed", "CANCELLED")


@operation
def timeout_cancels_the_run() -> None:
    impatient = client.with_options(timeout=1, max_retries=0)
    with expect_error(openai.APITimeoutError):
        impatient.chat.completions.create(
            model="hang", messages=HELLO, extra_headers={"X-Session-ID": "late"}
        )
    wait_for_status("late", "CANCELLED")


@operation
def stream_timeout_cancels_the_run() -> None:
    impatient = client.with_options(timeout=1, max_retries=0)
    with expect_error(Exception, "timed out"):
        for _ in impatient.chat.completions.create(
            model="half", messages=HELLO, stream=True, extra_headers={"X-Session-ID": "half"}
        ):
            pass
    wait_for_status("half", "CANCELLED")


# Structured answers


@operation
def parse_answer() -> None:
    messages: Any = [{"role": "user", "content": ADA}]
    answer = client.chat.completions.parse(model="echo", messages=messages, response_format=Person)
    expect(answer.choices[0].message.parsed == Person(name="Ada", age=36))


@operation
def parse_streamed_answer() -> None:
    messages: Any = [{"role": "user", "content": ADA}]
    with client.chat.completions.stream(
        model="echo", messages=messages, response_format=Person
    ) as events:
        final = events.get_final_completion()
    expect(final.choices[0].message.parsed == Person(name="Ada", age=36))


@operation
def schema_of_the_request() -> None:
    schema = {"name": "person", "schema": Person.model_json_schema(), "strict": False}
    expect(json.loads(chat(ADA, response_format={"type": "json_schema", "json_schema": schema})))


@operation
def json_object() -> None:
    expect(json.loads(chat(ADA, response_format={"type": "json_object"})) == json.loads(ADA))


# Settings of a model


def check_setting(**setting: Any) -> None:
    expect(chat(**setting) == "hello")


@operation
def setting_temperature() -> None:
    check_setting(temperature=0.2)


@operation
def setting_top_p() -> None:
    check_setting(top_p=0.9)


@operation
def setting_max_tokens() -> None:
    check_setting(max_tokens=500)


@operation
def setting_max_completion_tokens() -> None:
    check_setting(max_completion_tokens=500)


@operation
def setting_stop() -> None:
    check_setting(stop=["\n\n"])


@operation
def setting_seed() -> None:
    check_setting(seed=42)


@operation
def setting_presence_penalty() -> None:
    check_setting(presence_penalty=0.5)


@operation
def setting_frequency_penalty() -> None:
    check_setting(frequency_penalty=0.5)


@operation
def setting_logit_bias() -> None:
    check_setting(logit_bias={"50256": -100})


@operation
def setting_reasoning_effort() -> None:
    check_setting(reasoning_effort="low")


@operation
def setting_verbosity() -> None:
    check_setting(verbosity="low")


@operation
def setting_service_tier() -> None:
    check_setting(service_tier="flex")


@operation
def setting_store() -> None:
    check_setting(store=False)


# Errors


@due
def error_wrong_key() -> None:
    with expect_error(openai.AuthenticationError, "invalid_api_key"):
        OpenAI(api_key="sk-wrong").chat.completions.create(model="echo", messages=HELLO)


@due
def error_unknown_model() -> None:
    with expect_error(openai.NotFoundError, "model_not_found"):
        chat(model="gpt-4o")


@due
def error_failing_model() -> None:
    with expect_error(openai.InternalServerError, "502"):
        chat(model="http-500")


@due
def error_failing_stream() -> None:
    with expect_error(openai.APIError):
        list(stream(model="http-500"))


@due
def error_no_messages() -> None:
    with expect_error(openai.BadRequestError, "messages"):
        client.chat.completions.create(model="echo", messages=[])


@due
def error_unknown_parameter() -> None:
    with expect_error(openai.BadRequestError, "Unknown parameter: colour"):
        chat(extra_body={"colour": "red"})


@due
def error_cancelled_run() -> None:
    def cancel() -> None:
        run = wait_for_status("stopped", "RUNNING")
        ask_as_administrator(f"/agents/hang/runs/{run['run_id']}/cancel?session_id=stopped", "POST")

    thread = threading.Thread(target=cancel)
    thread.start()
    with expect_error(openai.ConflictError, "run_cancelled"):
        chat(model="hang", extra_headers={"X-Session-ID": "stopped"})
    thread.join()


if __name__ == "__main__":
    report()
