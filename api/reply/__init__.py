"""What a model replies: content, thoughts and calls of tools, whichever endpoint tells of them.

An endpoint makes a `Question` of what its clients send; `plan_reply` says how to ask it, and how to read what comes:
as events, piece by piece, or as one `Reply`.
"""

from llamalane.api.reply.events import Call, CallArguments, CallStart, Content, Event, Reasoning, Reply, collect
from llamalane.api.reply.formats import ToolFormat
from llamalane.api.reply.plan import EFFORTS, Plan, Question, ReplyFormat, ToolMode, plan_reply
from llamalane.api.reply.reader import ReplyReader
from llamalane.api.reply.turns import Tool, Turn

__all__ = [
    "EFFORTS",
    "Call",
    "CallArguments",
    "CallStart",
    "Content",
    "Event",
    "Plan",
    "Question",
    "Reasoning",
    "Reply",
    "ReplyFormat",
    "ReplyReader",
    "Tool",
    "ToolFormat",
    "ToolMode",
    "Turn",
    "collect",
    "plan_reply",
]
