"""Graphs of LangGraph as its cookbooks write them: supervisors, swarms, map-reduce, custom states.

The models follow the plan in the message of the user (`tests.kit.model_server`). The server imports
this file as a separate module.
"""

from __future__ import annotations

import operator
import os
import time
from dataclasses import astuple, dataclass, field, fields
from typing import Annotated, Any, Literal, NotRequired, Required
from typing import TypedDict as PlainTypedDict

import httpx
from langchain.agents import AgentState, create_agent
from langchain_core.callbacks import adispatch_custom_event
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

URL = os.environ["MODEL_URL"]


def chat(name: str) -> Any:
    client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
    return ChatOpenAI(
        model=name,
        base_url=URL,
        api_key="not-needed",
        stream_usage=True,
        max_retries=0,
        http_async_client=client,
    )


def sync_chat(name: str) -> Any:
    return ChatOpenAI(model=name, base_url=URL, api_key="not-needed", stream_usage=True)


@tool
async def search(query: str) -> str:
    """Search the web."""
    get_stream_writer()({"text": f"searching {query}", "fraction": 0.5})
    return f"results for {query}"


@tool
async def fail(reason: str) -> str:
    """Fail."""
    raise ValueError("a secret of the tool")


# A supervisor with handoffs (tutorial "Multi-agent supervisor")


def build_handoff(name: str) -> Any:
    @tool(f"transfer_to_{name}", description=f"Assign the task to {name}.")
    def handoff(
        state: Annotated[MessagesState, InjectedState],
        tool_call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        text = f"Transferred to {name}"
        result = ToolMessage(text, name=f"transfer_to_{name}", tool_call_id=tool_call_id)
        return Command(
            goto=name,
            update={**state, "messages": [*state["messages"], result]},
            graph=Command.PARENT,
        )

    return handoff


def build_supervisor() -> Any:
    boss = create_agent(
        chat("plan"), [build_handoff("researcher"), build_handoff("writer")], name="supervisor"
    )
    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", boss, destinations=("researcher", "writer", END))
    graph.add_node("researcher", create_agent(chat("plan"), [search, fail], name="researcher"))
    graph.add_node("writer", create_agent(chat("plan"), [], name="writer"))
    graph.add_edge(START, "supervisor")
    graph.add_edge("researcher", "supervisor")
    graph.add_edge("writer", "supervisor")
    return graph.compile()


supervisor: Any = build_supervisor()


# A team of teams, with synchronous code (tutorial "Hierarchical teams")


def ask_clerk(state: MessagesState) -> dict[str, Any]:
    clerk = create_agent(sync_chat("echo"), [], name="clerk")
    answer = clerk.invoke({"messages": [("user", "file it")]})["messages"][-1]
    return {"messages": [AIMessage(f"clerk: {answer.content}")]}


def build_hierarchy() -> Any:
    office = StateGraph(MessagesState)
    office.add_node("ask_clerk", ask_clerk)
    office.add_edge(START, "ask_clerk")
    graph = StateGraph(MessagesState)
    graph.add_node("office", office.compile())
    graph.add_edge(START, "office")
    return graph.compile()


hierarchy: Any = build_hierarchy()


# A swarm: agents that hand over to each other, with a checkpointer (tutorial "Swarm")


class Swarm(MessagesState):
    active: NotRequired[str]


def build_transfer(name: str) -> Any:
    @tool(f"transfer_to_{name}", description=f"Hand over to {name}.")
    def transfer(
        state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        result = ToolMessage("Transferred", name="transfer", tool_call_id=tool_call_id)
        messages = [*state["messages"], result]
        return Command(
            goto=name, graph=Command.PARENT, update={"messages": messages, "active": name}
        )

    return transfer


def build_swarm() -> Any:
    graph = StateGraph(Swarm)
    for name, other in (("alice", "bob"), ("bob", "alice")):
        agent = create_agent(chat("plan"), [build_transfer(other)], name=name)
        graph.add_node(name, agent, destinations=(other,))
    graph.add_conditional_edges(START, lambda state: state.get("active", "alice"))
    return graph.compile(checkpointer=InMemorySaver())


swarm: Any = build_swarm()


# Agents as tools (tutorial "Subagents")

planner = create_agent(chat("plan"), [search], name="planner")


@tool
async def ask_planner(request: str) -> str:
    """Ask the planner."""
    result = await planner.ainvoke({"messages": [("user", request)]})
    return str(result["messages"][-1].content)


subagents: Any = create_agent(chat("plan"), [ask_planner], name="assistant")


# Map-reduce with Send, whose branches are graphs with another state


class Joke(TypedDict):
    subject: str
    jokes: NotRequired[list[str]]


class Jokes(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


async def tell(state: Joke, config: RunnableConfig) -> dict[str, Any]:
    answer = await chat("echo").ainvoke(f"a joke about {state['subject']}", config)
    return {"jokes": [answer.content]}


def build_jokes() -> Any:
    one = StateGraph(Joke)
    one.add_node("tell", tell)
    one.add_edge(START, "tell")
    graph = StateGraph(Jokes)
    graph.add_node("joke", one.compile())
    graph.add_conditional_edges(
        START,
        lambda state: [Send("joke", {"subject": each}) for each in state["subjects"]],
        ["joke"],
    )
    return graph.compile()


jokes: Any = build_jokes()


# An assistant with another input (course "Email assistant")


class Email(BaseModel):
    author: str
    subject: str


class EmailInput(TypedDict):
    email_input: Required[Email]


class EmailState(MessagesState):
    email_input: Email


async def triage(state: EmailState) -> dict[str, Any]:
    email = state["email_input"]
    author = email["author"] if isinstance(email, dict) else email.author
    return {"messages": [AIMessage(f"answered {author} after {len(state['messages'])}")]}


def build_emails() -> Any:
    graph = StateGraph(EmailState, input_schema=EmailInput)
    graph.add_node("triage", triage)
    graph.add_edge(START, "triage")
    return graph.compile()


emails: Any = build_emails()


class Profile(MessagesState):
    language: str
    tone: NotRequired[str]


def greet(state: Profile) -> dict[str, Any]:
    asked = [message.content for message in state["messages"]]
    return {"messages": [("ai", f"{state['language']} {state.get('tone')} {asked}")]}


def build_profile() -> Any:
    graph = StateGraph(Profile)
    graph.add_node("greet", greet)
    graph.add_edge(START, "greet")
    return graph.compile()


profile: Any = build_profile()


# A state of a tutorial: an ordinary typed dictionary of the standard library, all of whose keys are
# annotated, though the nodes write most of them


class Section(PlainTypedDict):
    title: str
    body: NotRequired[str]


class Report(PlainTypedDict):
    topic: str
    sections: list[Section] | None
    final_report: Annotated[str, "written by the last node"]


def build_report() -> Any:
    def plan(state: Report) -> dict[str, Any]:
        return {"sections": [*(state.get("sections") or ()), {"title": state["topic"]}]}

    def write(state: Report) -> dict[str, Any]:
        return {"final_report": ", ".join(each["title"] for each in state["sections"] or ())}

    graph = StateGraph(Report)
    graph.add_sequence([plan, write])
    graph.add_edge(START, "plan")
    return graph.compile()


report: Any = build_report()


@entrypoint()
async def summary(inputs: Report) -> dict[str, Any]:
    return {"summary": inputs["topic"]}


summarized: Any = summary


# An extraction graph: its result is another schema than its state


class Extraction(PlainTypedDict):
    subject: str
    people: list[str]


class ExtractionState(MessagesState):
    subject: str
    people: list[str]
    attempts: int


def build_extraction() -> Any:
    def extract(state: ExtractionState) -> dict[str, Any]:
        people = str(state["messages"][-1].content).split()
        return {
            "messages": [("ai", "I look")],
            "people": people,
            "subject": "people",
            "attempts": 1,
        }

    graph = StateGraph(ExtractionState, output_schema=Extraction)
    graph.add_node("extract", extract)
    graph.add_edge(START, "extract")
    return graph.compile()


extraction: Any = build_extraction()


# Deep research: a report next to the messages, written without one


class Decision(BaseModel):
    classification: str


class ResearchState(MessagesState):
    notes: Annotated[list[str], operator.add]
    classification_decision: Decision
    handle: Any
    final_report: str


def build_research() -> Any:
    def classify(state: ResearchState) -> dict[str, Any]:
        return {"classification_decision": Decision(classification="respond"), "notes": ["n"]}

    def write(state: ResearchState) -> dict[str, Any]:
        report = {"final_report": "cats", "handle": object()}
        is_said = state["messages"][-1].content == "speak"
        return {**report, "messages": [("ai", "the report is ready")]} if is_said else report

    graph = StateGraph(ResearchState)
    graph.add_sequence([classify, write])
    graph.add_edge(START, "classify")
    return graph.compile()


research: Any = build_research()


# Deep research: an inner supervisor whose messages have another key


class InnerState(TypedDict):
    supervisor_messages: Annotated[list[Any], operator.add]
    brief: str


class OuterState(MessagesState):
    supervisor_messages: Annotated[list[Any], operator.add]
    brief: str


def build_inner_supervisor() -> Any:
    async def supervise(state: InnerState, config: RunnableConfig) -> dict[str, Any]:
        model = chat("plan").bind_tools([search])
        return {"supervisor_messages": [await model.ainvoke(state["supervisor_messages"], config)]}

    async def call_tools(state: InnerState) -> dict[str, Any]:
        (asked,) = state["supervisor_messages"][-1].tool_calls
        found = ToolMessage("found", name="search", tool_call_id=asked["id"])
        return {"supervisor_messages": [found]}

    inner = StateGraph(InnerState)
    inner.add_node("supervise", supervise)
    inner.add_node("call_tools", call_tools)
    inner.add_edge(START, "supervise")
    inner.add_conditional_edges(
        "supervise",
        lambda state: "call_tools" if state["supervisor_messages"][-1].tool_calls else END,
    )
    inner.add_edge("call_tools", "supervise")

    def brief(state: OuterState) -> dict[str, Any]:
        text = state["messages"][-1].content
        return {"supervisor_messages": [HumanMessage(text)], "brief": "cats"}

    graph = StateGraph(OuterState)
    graph.add_node("brief", brief)
    graph.add_node("research_supervisor", inner.compile())
    graph.add_node("report", lambda state: {"messages": [("ai", f"about {state['brief']}")]})
    graph.add_edge(START, "brief")
    graph.add_edge("brief", "research_supervisor")
    graph.add_edge("research_supervisor", "report")
    return graph.compile()


deep_research: Any = build_inner_supervisor()


# An agent with a separate state schema (guide "Short-term memory")


class Preferences(AgentState[Any]):
    user_name: str
    preferences: dict[str, Any]


@tool
async def tell_name(state: Annotated[Any, InjectedState]) -> str:
    """Return the name of the user."""
    return f"the name is {state.get('user_name')}"


remembering: Any = create_agent(chat("plan"), [tell_name], state_schema=Preferences)


@dataclass
class Order:
    product: str
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)


def build_order() -> Any:
    def confirm(state: Order) -> dict[str, Any]:
        return {"messages": [("ai", f"{state.product} for {state.messages[-1].content}")]}

    graph = StateGraph(Order)
    graph.add_node("confirm", confirm)
    graph.add_edge(START, "confirm")
    return graph.compile()


order: Any = build_order()


# The functional interface


@entrypoint()
async def essay(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"essay": f"about {inputs['topic']}"}


written: Any = essay


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]


@entrypoint()
def repeat(inputs: Talk) -> Talk:
    messages: Any = inputs["messages"]
    said = AIMessage(f"heard {messages[-1].content}, {len(messages)} messages")
    return {"messages": add_messages(messages, said)}


repeated: Any = repeat


class Subject(BaseModel):
    topic: str


@entrypoint()
def write_letter(subject: Subject) -> dict[str, Any]:
    return {"essay": f"Dear {subject.topic}"}


letter: Any = write_letter


# Memory in a store (template "memory-agent")


async def remember(state: MessagesState, runtime: Runtime[Any]) -> dict[str, Any]:
    assert runtime.store is not None
    namespace = ("memories", runtime.context.user_id)
    known = await runtime.store.asearch(namespace)
    text = str(state["messages"][-1].content)
    await runtime.store.aput(namespace, text, {"text": text})
    return {"messages": [("ai", ",".join(sorted(each.key for each in known)) or "nothing")]}


def build_memory(store: InMemoryStore | None) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("remember", remember)
    graph.add_edge(START, "remember")
    return graph.compile(store=store)


memory: Any = build_memory(InMemoryStore())


# Graphs without a store, which get that of the server: LangGraph's documentation, "Memory"


def take_note(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
    """Use the synchronous methods in a thread; all users have one namespace."""
    text = str(state["messages"][-1].content)
    found = store.search(("notes",), query=text, limit=2)
    store.put(("notes",), text, {"data": text})
    return {"messages": [("ai", ",".join(each.value["data"] for each in found) or "nothing")]}


def build_notes() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("take_note", take_note)
    graph.add_edge(START, "take_note")
    return graph.compile()


notes: Any = build_notes()


class UserInfo(TypedDict):
    name: str


@tool
def get_user_info(runtime: ToolRuntime[Any]) -> str:
    """Look up user info."""
    assert runtime.store is not None
    found = runtime.store.get(("users",), "info")
    return str(found.value) if found else "Unknown user"


@tool
async def save_user_info(user_info: UserInfo, runtime: ToolRuntime[Any]) -> str:
    """Save user info."""
    assert runtime.store is not None
    await runtime.store.aput(("users",), "info", dict(user_info))
    return "Successfully saved user info."


info: Any = create_agent(chat("plan"), [get_user_info, save_user_info])


async def list_items(state: MessagesState) -> dict[str, Any]:
    items = await get_store().asearch(())
    return {
        "messages": [
            (
                "ai",
                " ".join(sorted("/".join((*each.namespace, each.key)) for each in items))
                or "nothing",
            )
        ]
    }


def build_items() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("list_items", list_items)
    graph.add_edge(START, "list_items")
    return graph


items: Any = build_items()


def write_late(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
    """Write twice; the second time after a cancel, in a thread that nothing stops."""
    store.put(("late",), "first", {"n": 1})
    context = get_config()["configurable"]["run_context"]
    while not context.cancelled:
        time.sleep(0.01)
    store.put(("late",), "second", {"n": 2})
    return {}


def build_late() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("write_late", write_late)
    graph.add_edge(START, "write_late")
    return graph.compile()


late: Any = build_late()


# Custom events


async def work(state: MessagesState) -> dict[str, Any]:
    write = get_stream_writer()
    write("reading")
    write({"step": 2})
    write({"fraction": 0.75})
    await adispatch_custom_event("indexed", {"files": 3})
    return {"messages": [("ai", "done")]}


def build_custom() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    return graph.compile()


custom: Any = build_custom()


# Branches at the same time


def build_parallel() -> Any:
    def build_branch(name: str) -> Any:
        async def branch(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
            text = " ".join(f"{name}{number}" for number in range(30))
            return {"messages": [await chat("echo").ainvoke([HumanMessage(text)], config)]}

        return branch

    graph = StateGraph(MessagesState)
    for name in ("joke", "poem"):
        graph.add_node(name, build_branch(name))
        graph.add_edge(START, name)
    return graph.compile()


parallel: Any = build_parallel()


# Subgraphs at the same time whose models never end


def build_slow() -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("inner", create_agent(chat("trickle"), [], name="inner"))
    graph.add_node("other", create_agent(chat("trickle"), [], name="other"))
    graph.add_edge(START, "inner")
    graph.add_edge(START, "other")
    return graph.compile()


slow: Any = build_slow()


# What a caller configures: LangGraph's documentation, "Add runtime configuration"


@dataclass
class Research:
    model: Literal["small", "large"] = "small"
    depth: int = 1
    secret: str = "of the operator"


async def report_context(
    state: MessagesState, runtime: Runtime[Research], config: RunnableConfig
) -> dict[str, Any]:
    """Read the context, and the configuration as `from_runnable_config` of many templates does."""
    names = [each.name for each in fields(Research)]
    given = {name: value for name, value in config["configurable"].items() if name in names}
    count = len(state["messages"])
    return {"messages": [("ai", f"{astuple(runtime.context)} {given} {count}")]}


def build_configured() -> Any:
    graph = StateGraph(MessagesState, context_schema=Research)
    graph.add_node("report_context", report_context)
    graph.add_edge(START, "report_context")
    return graph.compile()


configured: Any = build_configured()


class Limits(BaseModel):
    tries: int = Field(gt=0)

    @field_validator("tries")
    @classmethod
    def check_tries(cls, value: int) -> int:
        if value == 13:
            raise ValueError("a secret of the validator")
        return value


@entrypoint(context_schema=Limits)
async def limited_task(inputs: dict[str, Any], *, runtime: Runtime[Limits]) -> dict[str, Any]:
    return {"tries": runtime.context.tries, "inputs": inputs}


limited: Any = limited_task
