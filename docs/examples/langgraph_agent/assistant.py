"""A graph of LangGraph: it greets the user in the first run, then a chat model answers.

It needs the package `langchain-openai`. The extra `langgraph` of agentctl does not install it,
because a graph chooses the library of its model.
"""

import os

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model=os.environ.get("GRAPH_MODEL", "gpt-5.2-mini"))


async def greet(state: MessagesState, config: RunnableConfig) -> dict:
    context = config["configurable"]["run_context"]
    return {"messages": [AIMessage(f"Hello {context.user_id}.")]}


async def answer(state: MessagesState, config: RunnableConfig) -> dict:
    return {"messages": [await model.ainvoke(state["messages"], config)]}


def is_known(state: MessagesState) -> str:
    """Choose the first node: a user who has written before is not greeted again."""
    return "answer" if len(state["messages"]) > 1 else "greet"


builder = StateGraph(MessagesState)
builder.add_node("greet", greet)
builder.add_node("answer", answer)
builder.add_conditional_edges(START, is_known, ["greet", "answer"])
builder.add_edge("greet", "answer")

plain = builder.compile()
# In production: AsyncPostgresSaver of langgraph-checkpoint-postgres.
durable = builder.compile(checkpointer=InMemorySaver())
