"""instructor, in its default mode and in two others."""

from __future__ import annotations

import instructor
from openai import OpenAI
from operations import expect, operation, report
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def extract(client: instructor.Instructor, model: str) -> None:
    person = client.chat.completions.create(
        model=model,
        response_model=Person,
        messages=[{"role": "user", "content": '{"name": "Ada", "age": 36}'}],
        max_retries=1,
    )
    expect(person.model_dump() == {"name": "Ada", "age": 36}, person)


@operation
def default_mode() -> None:
    extract(instructor.from_openai(OpenAI()), "person")


@operation
def schema_mode() -> None:
    extract(instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON_SCHEMA), "echo")


@operation
def json_mode() -> None:
    extract(instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON), "echo")


if __name__ == "__main__":
    report()
