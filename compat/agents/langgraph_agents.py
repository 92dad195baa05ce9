"""Graphs of LangGraph after the shapes of its tutorials and templates, in own words."""

from __future__ import annotations

import operator
import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Send, interrupt
from ledger import recorded
from pydantic import BaseModel
from typing_extensions import TypedDict

URL = os.environ["MODEL_URL"]


def chat(role: str) -> ChatOpenAI:
    """Return the model of a role."""
    options: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=role, stream_usage=True, **options)


@tool
@recorded
async def weather(city: str) -> str:
    """Report the weather of a city."""
    return f"22 degrees in {city}"


@tool
@recorded
def search(query: str) -> str:
    """Search the web."""
    return f"three pages about {query}"


# Quick start: one synchronous node


def _chatbot(state: MessagesState) -> Any:
    return {"messages": [chat("chatbot").invoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("chatbot", _chatbot)
_builder.add_edge(START, "chatbot")
_builder.add_edge("chatbot", END)
chatbot = _builder.compile()
remembering = _builder.compile(checkpointer=InMemorySaver())


# Quick start: a model with tools, and the prebuilt nodes


async def _think(state: MessagesState) -> Any:
    model = chat("tooled").bind_tools([weather, search])
    return {"messages": [await model.ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("think", _think)
_builder.add_node("tools", ToolNode([weather, search]))
_builder.add_edge(START, "think")
_builder.add_conditional_edges("think", tools_condition)
_builder.add_edge("tools", "think")
tooled = _builder  # not compiled, as in a notebook


# Supervisor: a router with structured output, and members that report to it


class Route(BaseModel):
    """The next worker."""

    next: Literal["researcher", "coder", "FINISH"]


async def _supervise(state: MessagesState) -> Command[Literal["researcher", "coder", "__end__"]]:
    model = chat("boss").with_structured_output(Route)
    route: Any = await model.ainvoke([SystemMessage("Choose who works."), *state["messages"]])
    return Command(goto=END if route.next == "FINISH" else route.next)


def _build_member(role: str, *tools: Any) -> Any:
    async def think(state: MessagesState) -> Any:
        model = chat(f"boss/{role}").bind_tools(list(tools))
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_node("think", think)
    inner.add_node("tools", ToolNode(list(tools)))
    inner.add_edge(START, "think")
    inner.add_conditional_edges("think", tools_condition)
    inner.add_edge("tools", "think")
    graph = inner.compile(name=role)

    async def work(state: MessagesState) -> Command[Literal["supervisor"]]:
        done = await graph.ainvoke({"messages": state["messages"]})
        report = HumanMessage(done["messages"][-1].content, name=role)
        return Command(update={"messages": [report]}, goto="supervisor")

    return work


_builder = StateGraph(MessagesState)
_builder.add_node("supervisor", _supervise)
_builder.add_node("researcher", _build_member("researcher", search))
_builder.add_node("coder", _build_member("coder", weather))
_builder.add_edge(START, "supervisor")
supervisor = _builder.compile()


# Handoffs: a tool that moves to another node


def _build_handoff(target: str) -> Any:
    @tool(f"transfer_to_{target}")
    def transfer(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        done = ToolMessage(f"transferred to {target}", tool_call_id=tool_call_id)
        return Command(goto=target, update={"messages": [done]})

    return transfer


def _build_agent(name: str, *tools: Any) -> Any:
    async def think(state: MessagesState) -> Any:
        model = chat(f"handoff/{name}").bind_tools(list(tools))
        return {"messages": [await model.ainvoke(state["messages"])]}

    return think


def _after(name: str) -> Any:
    def choose(state: MessagesState) -> str:
        last: Any = state["messages"][-1]
        return f"{name}_tools" if last.tool_calls else END

    return choose


_builder = StateGraph(MessagesState)
for _name, _tools in (
    ("travel", [_build_handoff("hotel")]),
    ("hotel", [search, _build_handoff("travel")]),
):
    _builder.add_node(_name, _build_agent(_name, *_tools))
    _builder.add_node(f"{_name}_tools", ToolNode(_tools))
    _builder.add_conditional_edges(_name, _after(_name), [f"{_name}_tools", END])
_builder.add_edge(START, "travel")
_builder.add_edge("hotel_tools", "hotel")
handoff = _builder.compile()


# Parallel calls with an aggregator


class Parallel(MessagesState):
    texts: Annotated[list[str], operator.add]


def _build_writer(kind: str) -> Any:
    async def write(state: Parallel) -> Any:
        said = await chat(f"parallel/{kind}").ainvoke(f"Write a {kind}.")
        return {"texts": [f"{kind}: {said.content}"]}

    return write


def _join(state: Parallel) -> Any:
    return {"messages": [AIMessage("\n".join(sorted(state["texts"])))]}


_builder = StateGraph(Parallel)
_builder.add_node("join", _join)
for _kind in ("joke", "poem", "story"):
    _builder.add_node(_kind, _build_writer(_kind))
    _builder.add_edge(START, _kind)
    _builder.add_edge(_kind, "join")
parallel = _builder.compile()


# Fan-out: each branch adds its answer to the messages


def _build_branch(name: str) -> Any:
    async def answer(state: MessagesState) -> Any:
        return {"messages": [await chat(f"fanout/{name}").ainvoke(state["messages"])]}

    return answer


_builder = StateGraph(MessagesState)
for _name in ("left", "right"):
    _builder.add_node(_name, _build_branch(_name))
    _builder.add_edge(START, _name)
fanout = _builder.compile()


# Map and reduce with Send


class Subjects(BaseModel):
    """Subjects of a topic."""

    subjects: list[str]


class Reduced(MessagesState):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


async def _list_subjects(state: Reduced) -> Any:
    model = chat("mapreduce").with_structured_output(Subjects)
    found: Any = await model.ainvoke(state["messages"])
    return {"subjects": found.subjects}


async def _joke(state: dict[str, Any]) -> Any:
    said = await chat("mapreduce/joke").ainvoke(f"A joke about {state['subject']}")
    return {"jokes": [said.content]}


async def _choose(state: Reduced) -> Any:
    jokes = "\n".join(sorted(state["jokes"]))
    return {"messages": [await chat("mapreduce/best").ainvoke(f"Choose the best of:\n{jokes}")]}


_builder = StateGraph(Reduced)
_builder.add_node("list", _list_subjects)
_builder.add_node("joke", _joke)
_builder.add_node("choose", _choose)
_builder.add_edge(START, "list")
_builder.add_conditional_edges(
    "list", lambda state: [Send("joke", {"subject": each}) for each in state["subjects"]], ["joke"]
)
_builder.add_edge("joke", "choose")
mapreduce = _builder.compile()


# Reflection: a writer and a critic who speaks as the user


async def _write(state: MessagesState) -> Any:
    return {"messages": [await chat("reflection").ainvoke(state["messages"])]}


async def _criticize(state: MessagesState) -> Any:
    said = await chat("reflection/critic").ainvoke(state["messages"])
    return {"messages": [HumanMessage(said.content)]}


def _is_good(state: MessagesState) -> str:
    last = max(n for n, each in enumerate(state["messages"]) if "essay" in str(each.content))
    return END if "second" in str(state["messages"][last].content) else "critic"


_builder = StateGraph(MessagesState)
_builder.add_node("write", _write)
_builder.add_node("critic", _criticize)
_builder.add_edge(START, "write")
_builder.add_conditional_edges("write", _is_good, ["critic", END])
_builder.add_edge("critic", "write")
reflection = _builder.compile()


# Retrieval: documents, a grade, an answer


class Grade(BaseModel):
    """Is a document relevant?"""

    relevant: bool


class Retrieved(MessagesState):
    documents: list[str]


async def _retrieve(state: Retrieved) -> Any:
    return {"documents": ["The moon is 384,400 km away.", "Cats sleep."]}


async def _grade(state: Retrieved) -> Any:
    model = chat("retrieval/grade").with_structured_output(Grade)
    kept = []
    for document in state["documents"]:
        grade: Any = await model.ainvoke(document)
        kept += [document] if grade.relevant else []
    return {"documents": kept}


async def _answer(state: Retrieved) -> Any:
    context = SystemMessage("Context: " + " ".join(state["documents"]))
    return {"messages": [await chat("retrieval").ainvoke([context, *state["messages"]])]}


_builder = StateGraph(Retrieved)
_builder.add_sequence([("retrieve", _retrieve), ("grade", _grade), ("answer", _answer)])
_builder.add_edge(START, "retrieve")
retrieval = _builder.compile()


# Memory in a store


@tool
@recorded
async def note(fact: str) -> str:
    """Remember a fact."""
    return f"noted: {fact}"


async def _recall(state: MessagesState, runtime: Runtime[Any]) -> Any:
    assert runtime.store is not None
    for message in state["messages"]:
        for call in getattr(message, "tool_calls", ()):
            await runtime.store.aput(("facts",), call["id"], call["args"])
    known = len(await runtime.store.asearch(("facts",)))
    rules = SystemMessage("Facts: some" if known else "Facts: none")
    model = chat("memory").bind_tools([note])
    return {"messages": [await model.ainvoke([rules, *state["messages"]])]}


_builder = StateGraph(MessagesState)
_builder.add_node("recall", _recall)
_builder.add_node("tools", ToolNode([note]))
_builder.add_edge(START, "recall")
_builder.add_conditional_edges("recall", tools_condition)
_builder.add_edge("tools", "recall")
memory = _builder.compile(store=InMemoryStore())


# Email assistant: calls of tools by hand, results as dicts, a structured triage first


class Triage(BaseModel):
    """The decision about a mail."""

    decision: Literal["respond", "ignore"]


@tool
@recorded
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


async def _triage(state: MessagesState) -> Command[Literal["draft", "__end__"]]:
    found: Any = await chat("email/triage").with_structured_output(Triage).ainvoke("Triage this.")
    if found.decision == "ignore":
        return Command(goto=END, update={"messages": [{"role": "ai", "content": "ignored"}]})
    return Command(goto="draft")


async def _draft(state: MessagesState) -> Any:
    model = chat("email").bind_tools([send_mail])
    return {"messages": [await model.ainvoke([("system", "Write."), *state["messages"]])]}


def _send(state: MessagesState) -> Any:
    last: Any = state["messages"][-1]
    return {
        "messages": [
            {"role": "tool", "content": send_mail.invoke(call["args"]), "tool_call_id": call["id"]}
            for call in last.tool_calls
        ]
    }


_builder = StateGraph(MessagesState)
_builder.add_node("triage", _triage)
_builder.add_node("draft", _draft)
_builder.add_node("tools", _send)
_builder.add_edge(START, "triage")
_builder.add_conditional_edges("draft", tools_condition)
_builder.add_edge("tools", "draft")
email = _builder.compile()


# Own input schema: a mail as an object, not a message


class Mail(TypedDict):
    subject: str
    body: str


class MailInput(TypedDict):
    email: Mail


class MailState(MessagesState):
    email: Mail


async def _reply(state: MailState) -> Any:
    mail = state["email"]
    said = await chat("mail_input").ainvoke(f"{mail['subject']}: {mail['body']}")
    return {"messages": [said]}


_builder = StateGraph(MailState, input_schema=MailInput)
_builder.add_node("reply", _reply)
_builder.add_edge(START, "reply")
mail_input = _builder.compile()


# A person in the loop: an interrupt in a node


async def _propose(state: MessagesState) -> Any:
    return {"messages": [await chat("ask").ainvoke(state["messages"])]}


async def _ask(state: MessagesState) -> Any:
    answer = interrupt({"question": "Is this right?"})
    return {"messages": [("ai", f"You said {answer}.")]}


_builder = StateGraph(MessagesState)
_builder.add_sequence([("propose", _propose), ("ask", _ask)])
_builder.add_edge(START, "propose")
ask = _builder.compile()


# Subgraphs as nodes


async def _outline(state: MessagesState) -> Any:
    return {"messages": [await chat("subgraph/outline").ainvoke(state["messages"])]}


async def _polish(state: MessagesState) -> Any:
    return {"messages": [await chat("subgraph").ainvoke(state["messages"])]}


_inner = StateGraph(MessagesState)
_inner.add_node("outline", _outline)
_inner.add_edge(START, "outline")
_builder = StateGraph(MessagesState)
_builder.add_node("plan", _inner.compile())
_builder.add_node("polish", _polish)
_builder.add_edge(START, "plan")
_builder.add_edge("plan", "polish")
subgraph = _builder.compile()


# Tuples as messages, a context class with defaults, and custom stream events


@dataclass
class Context:
    role: str = "tuples"


async def _greet(state: MessagesState, runtime: Runtime[Context]) -> Any:
    get_stream_writer()({"step": "greeting"})
    said = await chat(runtime.context.role).ainvoke([("user", "Greet.")])
    return {"messages": ("ai", f"{said.content}!")}


_builder = StateGraph(MessagesState, context_schema=Context)
_builder.add_node("greet", _greet)
_builder.add_edge(START, "greet")
tuples = _builder.compile()


# Orchestrator and workers: a structured plan, Send, a synthesis without a model


class Plan(BaseModel):
    """Sections of a report."""

    sections: list[str]


class Report(MessagesState):
    sections: list[str]
    written: Annotated[list[str], operator.add]


async def _plan(state: Report) -> Any:
    plan: Any = await chat("report").with_structured_output(Plan).ainvoke(state["messages"])
    return {"sections": plan.sections}


async def _section(state: dict[str, Any], config: RunnableConfig) -> Any:
    said = await chat("report/writer").ainvoke(f"Write about {state['section']}", config)
    return {"written": [str(said.content)]}


def _synthesize(state: Report) -> Any:
    return {
        "messages": [{"role": "assistant", "content": "\n---\n".join(sorted(state["written"]))}]
    }


_builder = StateGraph(Report)
_builder.add_node("plan", _plan)
_builder.add_node("section", _section)
_builder.add_node("synthesize", _synthesize)
_builder.add_edge(START, "plan")
_builder.add_conditional_edges(
    "plan", lambda state: [Send("section", {"section": s}) for s in state["sections"]], ["section"]
)
_builder.add_edge("section", "synthesize")
report = _builder.compile()


# Evaluator and optimizer: write until a structured grade is good


class Verdict(BaseModel):
    """A grade and what to change."""

    good: bool
    feedback: str


class Draft(MessagesState):
    feedback: str
    good: bool


async def _optimize(state: Draft) -> Any:
    said = await chat("evaluator").ainvoke(f"A joke. Feedback: {state.get('feedback', 'none')}")
    return {"messages": [said]}


async def _evaluate(state: Draft) -> Any:
    model = chat("evaluator/grade").with_structured_output(Verdict)
    verdict: Any = await model.ainvoke(str(state["messages"][-1].content))
    return {"good": verdict.good, "feedback": verdict.feedback}


_builder = StateGraph(Draft)
_builder.add_node("optimize", _optimize)
_builder.add_node("evaluate", _evaluate)
_builder.add_edge(START, "optimize")
_builder.add_edge("optimize", "evaluate")
_builder.add_conditional_edges(
    "evaluate", lambda state: END if state["good"] else "optimize", ["optimize", END]
)
evaluator = _builder.compile()
