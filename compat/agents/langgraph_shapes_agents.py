"""Graphs of LangGraph with own states: typed dictionaries, outputs, functions, stores, files."""

from __future__ import annotations

import operator
import os
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Required, Union

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langchain_openai import ChatOpenAI
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode, create_react_agent, tools_condition
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Command, RetryPolicy, Send, interrupt
from ledger import recorded
from pydantic import BaseModel
from typing_extensions import TypedDict

import agentctl

URL = os.environ["MODEL_URL"]


def chat(role: str) -> ChatOpenAI:
    """Return the model of a role."""
    options: Any = {"base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
    return ChatOpenAI(model=role, stream_usage=True, **options)


# Prompt chaining: a state without messages, synchronous nodes, a check


class JokeState(TypedDict):
    topic: str
    joke: str
    improved_joke: str
    final_joke: str


def _first_joke(state: JokeState) -> Any:
    return {"joke": chat("chain").invoke(f"Write a joke about {state['topic']}").content}


def _has_punchline(state: JokeState) -> Literal["Pass", "Fail"]:
    return "Pass" if "?" in state["joke"] or "!" in state["joke"] else "Fail"


def _improve(state: JokeState) -> Any:
    return {"improved_joke": chat("chain").invoke(f"Add wordplay: {state['joke']}").content}


def _finish(state: JokeState) -> Any:
    return {"final_joke": chat("chain").invoke(f"Add a twist: {state['improved_joke']}").content}


_builder: Any = StateGraph(JokeState)
_builder.add_node("generate", _first_joke)
_builder.add_node("improve", _improve)
_builder.add_node("finish", _finish)
_builder.add_edge(START, "generate")
_builder.add_conditional_edges("generate", _has_punchline, {"Fail": "improve", "Pass": END})
_builder.add_edge("improve", "finish")
_builder.add_edge("finish", END)
chain = _builder.compile()


# Routing: a decision with structured output, one node for each kind


class Step(BaseModel):
    """The next step."""

    step: Literal["poem", "story", "joke"]


class RouteState(TypedDict):
    input: str
    decision: str
    output: str


def _decide(state: RouteState) -> Any:
    router = chat("routing/router").with_structured_output(Step)
    found: Any = router.invoke([SystemMessage("Route the input."), HumanMessage(state["input"])])
    return {"decision": found.step}


def _build_kind(kind: str) -> Any:
    def write(state: RouteState) -> Any:
        return {"output": chat(f"routing/{kind}").invoke(state["input"]).content}

    return write


_builder = StateGraph(RouteState)
_builder.add_node("router", _decide)
_builder.add_edge(START, "router")
for _kind in ("poem", "story", "joke"):
    _builder.add_node(_kind, _build_kind(_kind))
    _builder.add_edge(_kind, END)
_builder.add_conditional_edges("router", lambda state: state["decision"])
routing = _builder.compile()


# Input, output and private schemas


class Question(TypedDict):
    question: str


class Answer(TypedDict):
    answer: str


class Overall(TypedDict):
    question: str
    answer: str
    notes: str


class Private(TypedDict):
    plan: str


def _plan_answer(state: Question) -> Private:
    return {"plan": f"first {state['question']}"}


async def _write_answer(state: Private) -> Any:
    said = await chat("schemas").ainvoke(f"Follow the plan: {state['plan']}")
    return {"answer": said.content, "notes": "internal"}


_builder = StateGraph(Overall, input_schema=Question, output_schema=Answer)
_builder.add_node("plan", _plan_answer)
_builder.add_node("write", _write_answer)
_builder.add_edge(START, "plan")
_builder.add_edge("plan", "write")
schemas = _builder.compile()


# Required keys, and the others with defaults in the nodes


class Trip(TypedDict, total=False):
    city: Required[str]
    days: int
    plan: str


async def _travel(state: Trip) -> Any:
    said = await chat("trip").ainvoke(f"Plan {state.get('days', 2)} days in {state['city']}")
    return {"plan": said.content}


_builder = StateGraph(Trip)
_builder.add_node("travel", _travel)
_builder.add_edge(START, "travel")
trip = _builder.compile()


# Map and reduce without messages, with synchronous nodes


class Subjects(BaseModel):
    """Subjects of a topic."""

    subjects: list[str]


class MapState(TypedDict):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best_joke: str


def _find_subjects(state: MapState) -> Any:
    model = chat("send").with_structured_output(Subjects)
    found: Any = model.invoke(f"Subjects of {state['topic']}")
    return {"subjects": found.subjects}


def _make_joke(state: Any) -> Any:
    return {"jokes": [chat("send/joke").invoke(f"A joke about {state['subject']}").content]}


def _choose_joke(state: MapState) -> Any:
    return {"best_joke": chat("send/best").invoke("\n".join(sorted(state["jokes"]))).content}


_builder = StateGraph(MapState)
_builder.add_node("find", _find_subjects)
_builder.add_node("joke", _make_joke)
_builder.add_node("choose", _choose_joke)
_builder.add_edge(START, "find")
_builder.add_conditional_edges(
    "find", lambda state: [Send("joke", {"subject": each}) for each in state["subjects"]], ["joke"]
)
_builder.add_edge("joke", "choose")
send = _builder.compile()


# Plan and execute: a plan, an inner agent for each step, a new plan or an answer


class Plan(BaseModel):
    """Steps to follow."""

    steps: list[str]


class Response(BaseModel):
    """The response to the user."""

    response: str


class Act(BaseModel):
    """Respond, or follow a new plan."""

    action: Union[Response, Plan]  # noqa: UP007


class PlanState(TypedDict):
    input: str
    plan: list[str]
    past_steps: Annotated[list[tuple[str, str]], operator.add]
    response: str


@tool
@recorded
async def look_up(query: str) -> str:
    """Look something up."""
    return f"facts about {query}"


_executor = create_react_agent(chat("planning/executor"), [look_up])


async def _make_plan(state: PlanState) -> Any:
    model = chat("planning").with_structured_output(Plan)
    plan: Any = await model.ainvoke([("user", state["input"])])
    return {"plan": plan.steps}


async def _execute(state: PlanState) -> Any:
    step = state["plan"][0]
    done = await _executor.ainvoke({"messages": [("user", f"Do this: {step}")]})
    return {"past_steps": [(step, done["messages"][-1].content)]}


async def _replan(state: PlanState) -> Any:
    model = chat("planning/replan").with_structured_output(Act, method="function_calling")
    act: Any = await model.ainvoke(f"Done so far: {state['past_steps']}")
    if isinstance(act.action, Response):
        return {"response": act.action.response}
    return {"plan": act.action.steps}


_builder = StateGraph(PlanState)
_builder.add_node("planner", _make_plan)
_builder.add_node("agent", _execute)
_builder.add_node("replan", _replan)
_builder.add_edge(START, "planner")
_builder.add_edge("planner", "agent")
_builder.add_edge("agent", "replan")
_builder.add_conditional_edges(
    "replan", lambda state: END if state.get("response") else "agent", ["agent", END]
)
planning = _builder.compile()


# Corrective retrieval: documents, grades, another query, an answer


class GraphState(TypedDict):
    question: str
    generation: str
    web_search: str
    documents: list[str]


class Score(BaseModel):
    """A binary score."""

    binary_score: str


async def _retrieve(state: GraphState) -> Any:
    return {"documents": ["Agents plan.", "Cats sleep."]}


async def _grade(state: GraphState) -> Any:
    grader = chat("corrective/grade").with_structured_output(Score)
    kept = []
    search = "No"
    for document in state["documents"]:
        score: Any = await grader.ainvoke(f"{document} for {state['question']}")
        if score.binary_score == "yes":
            kept.append(document)
        else:
            search = "Yes"
    return {"documents": kept, "web_search": search}


async def _transform(state: GraphState) -> Any:
    better = await chat("corrective/rewrite").ainvoke(f"Improve: {state['question']}")
    return {"question": better.content}


async def _search_web(state: GraphState) -> Any:
    found = await look_up.ainvoke({"query": state["question"]})
    return {"documents": [*state["documents"], found]}


async def _generate(state: GraphState) -> Any:
    context = " ".join(state["documents"])
    said = await chat("corrective").ainvoke(f"{state['question']} Context: {context}")
    return {"generation": said.content}


_builder = StateGraph(GraphState)
_builder.add_node("retrieve", _retrieve)
_builder.add_node("grade", _grade)
_builder.add_node("transform", _transform)
_builder.add_node("web_search_node", _search_web)
_builder.add_node("generate", _generate)
_builder.add_edge(START, "retrieve")
_builder.add_edge("retrieve", "grade")
_builder.add_conditional_edges(
    "grade",
    lambda state: "transform" if state["web_search"] == "Yes" else "generate",
    ["transform", "generate"],
)
_builder.add_edge("transform", "web_search_node")
_builder.add_edge("web_search_node", "generate")
_builder.add_edge("generate", END)
corrective = _builder.compile()


# Agentic retrieval: a retriever tool, a grade, a rewritten question


@tool
@recorded
def retrieve_posts(query: str) -> str:
    """Search blog posts."""
    return f"posts about {query}"


async def _ask_or_respond(state: MessagesState) -> Any:
    model = chat("agentic").bind_tools([retrieve_posts])
    return {"messages": [await model.ainvoke(state["messages"])]}


async def _grade_posts(state: MessagesState) -> Literal["answer", "rewrite"]:
    grader = chat("agentic/grade").with_structured_output(Score)
    score: Any = await grader.ainvoke(f"Relevant? {state['messages'][-1].content}")
    return "answer" if score.binary_score == "yes" else "rewrite"


async def _rewrite(state: MessagesState) -> Any:
    better = await chat("agentic/rewrite").ainvoke("Rewrite the question")
    return {"messages": [HumanMessage(str(better.content))]}


async def _answer_posts(state: MessagesState) -> Any:
    return {"messages": [await chat("agentic/answer").ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("query", _ask_or_respond)
_builder.add_node("retrieve", ToolNode([retrieve_posts]))
_builder.add_node("rewrite", _rewrite)
_builder.add_node("answer", _answer_posts)
_builder.add_edge(START, "query")
_builder.add_conditional_edges("query", tools_condition, {"tools": "retrieve", END: END})
_builder.add_conditional_edges("retrieve", _grade_posts)
_builder.add_edge("answer", END)
_builder.add_edge("rewrite", "query")
agentic = _builder.compile()


# The functional API: an essay with tasks, and an agent


@task
async def _write_essay(topic: str) -> str:
    return str((await chat("essay").ainvoke(f"Write an essay about {topic}")).content)


@task
async def _rate_essay(essay: str) -> int:
    return len(essay)


@entrypoint()
async def essay(inputs: dict[str, Any]) -> dict[str, Any]:
    """Write an essay."""
    written = await _write_essay(inputs["topic"])
    return {"essay": written, "score": await _rate_essay(written)}


@tool
@recorded
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


class Conversation(TypedDict):
    messages: Annotated[list[Any], add_messages]


@task
def _call_model(messages: list[BaseMessage]) -> Any:
    model = chat("functional").bind_tools([multiply])
    return model.invoke([SystemMessage("You calculate."), *messages])


@task
def _call_tool(call: Any) -> Any:
    return multiply.invoke(call)


@entrypoint()
def functional(inputs: Conversation) -> Conversation:
    """Calculate, with tools."""
    messages: Any = inputs["messages"]
    said = _call_model(messages).result()
    while said.tool_calls:
        results = [_call_tool(call).result() for call in said.tool_calls]
        messages = add_messages(messages, [said, *results])
        said = _call_model(messages).result()
    return {"messages": add_messages(messages, said)}


# Long-term memory: a store without a setting, a namespace of the user, a search


def _remember(
    state: MessagesState, runtime: Runtime[agentctl.RunContext], *, store: BaseStore
) -> Any:
    namespace = (runtime.context.user_id or "-", "memories")
    last = str(state["messages"][-1].content)
    known = store.search(namespace, query=last)
    notes = "\n".join(item.value["data"] for item in known)
    store.put(namespace, str(uuid.uuid4()), {"data": last})
    rules = SystemMessage(f"Known about the user: {notes}")
    return {"messages": [chat("profile").invoke([rules, *state["messages"]])]}


_builder = StateGraph(MessagesState)
_builder.add_node("remember", _remember)
_builder.add_edge(START, "remember")
profile = _builder.compile()


# Configuration by the caller: the context chooses the model


@dataclass
class ModelContext:
    provider: str = "configured/small"
    system_message: str = "Be brief."


async def _call_configured(state: MessagesState, runtime: Runtime[ModelContext]) -> Any:
    rules = SystemMessage(runtime.context.system_message)
    said = await chat(runtime.context.provider).ainvoke([rules, *state["messages"]])
    return {"messages": [said]}


_builder = StateGraph(MessagesState, context_schema=ModelContext)
_builder.add_node("model", _call_configured)
_builder.add_edge(START, "model")
configured = _builder.compile()


# A picture and a document in the message


async def _look(state: MessagesState) -> Any:
    return {"messages": [await chat("looking").ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("look", _look)
_builder.add_edge(START, "look")
looking = _builder.compile()


# Handoffs there and back between two agents, each a subgraph with its own tools


def _build_transfer(target: str) -> Any:
    @tool(f"ask_{target}_advisor", description=f"Ask the {target} advisor for help.")
    def transfer(
        state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Command[Any]:
        done = ToolMessage(f"Transferred to {target}", tool_call_id=tool_call_id)
        messages = [*state["messages"], done]
        return Command(goto=target, graph=Command.PARENT, update={"messages": messages})

    return transfer


_builder = StateGraph(MessagesState)
_builder.add_node(
    "flights",
    create_react_agent(chat("back/flights"), [look_up, _build_transfer("hotels")], name="flights"),
    destinations=("hotels", END),
)
_builder.add_node(
    "hotels",
    create_react_agent(chat("back/hotels"), [_build_transfer("flights")], name="hotels"),
    destinations=("flights", END),
)
_builder.add_edge(START, "flights")
back = _builder.compile()


# A subgraph with another state, called by the code of a node


class InnerState(TypedDict):
    text: str
    summary: str


async def _summarize(state: InnerState) -> Any:
    return {"summary": (await chat("inner/summary").ainvoke(state["text"])).content}


_summary: Any = StateGraph(InnerState)
_summary.add_node("summarize", _summarize)
_summary.add_edge(START, "summarize")
_summary = _summary.compile()


class OuterState(TypedDict):
    report: str
    headline: str


async def _call_inner(state: OuterState) -> Any:
    done = await _summary.ainvoke({"text": state["report"]})
    return {"headline": str(done["summary"]).upper()}


_builder = StateGraph(OuterState)
_builder.add_node("headline", _call_inner)
_builder.add_edge(START, "headline")
transformed = _builder.compile()


# A review of a call inside of a tool


@tool
@recorded
def note_booking(hotel: str) -> str:
    """Note a booking."""
    return f"noted {hotel}"


@tool
def book_hotel(hotel: str) -> str:
    """Book a hotel."""
    answer = interrupt({"action": "book_hotel", "hotel": hotel})
    chosen = answer if isinstance(answer, str) and answer != "accept" else hotel
    return str(note_booking.invoke({"hotel": chosen}))


reviewed = create_react_agent(chat("reviewed"), [book_hotel])


# A node that is tried again


_attempts = Counter[str]()


async def _unsteady(state: MessagesState) -> Any:
    _attempts["node"] += 1
    if _attempts["node"] % 2:
        raise ConnectionError("try again")
    return {"messages": [await chat("unsteady").ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node(
    "unsteady", _unsteady, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.01)
)
_builder.add_edge(START, "unsteady")
unsteady = _builder.compile()


# A second model for the failures of the first one


async def _call_with_fallback(state: MessagesState) -> Any:
    model = chat("fallback/first").with_fallbacks([chat("fallback")])
    return {"messages": [await model.ainvoke(state["messages"])]}


_builder = StateGraph(MessagesState)
_builder.add_node("model", _call_with_fallback)
_builder.add_edge(START, "model")
fallback = _builder.compile()


# The user of the run in a node's configuration, by a factory


async def personal() -> Any:
    """Build a graph, as a factory does that has to wait for its parts."""

    async def greet(state: MessagesState, config: RunnableConfig) -> Any:
        context = config["configurable"]["run_context"]
        rules = SystemMessage(f"The user is {context.user_id}.")
        return {"messages": [await chat("personal").ainvoke([rules, *state["messages"]])]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("greet", greet)
    builder.add_edge(START, "greet")
    return builder.compile()
