"""A response as an object: what it begins as, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from llamalane.api.errors import answer_for
from llamalane.api.orders import Order
from llamalane.api.responses.body import FunctionTool, ResponsesBody
from llamalane.api.responses.output import COMPLETED, IN_PROGRESS, INCOMPLETE, Output
from llamalane.scheduler import FinishReason, Result


def begun(order: Order[ResponsesBody]) -> dict[str, Any]:
    """Return the response before its output, with what the request asked for."""
    body, sampling = order.body, order.body.sampling
    return {
        "id": order.id,
        "object": "response",
        "created_at": order.created,
        "completed_at": None,
        "status": IN_PROGRESS,
        "error": None,
        "incomplete_details": None,
        "model": order.model,
        "output": [],
        "usage": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": _text_of(body),
        "reasoning": _reasoning_of(body),
        "tools": [_described(tool) for tool in body.tools or ()],
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "truncation": "disabled",
        "background": False,
        "store": False,
        "previous_response_id": None,
        "metadata": body.metadata or {},
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "service_tier": order.tier,
        "priority": order.level,
    }


def ended(order: Order[ResponsesBody], beginning: Mapping[str, Any], output: Output, result: Result) -> dict[str, Any]:
    """Return the response with its whole output; `beginning` is what it was begun as."""
    status = status_of(result)
    counts = order.counts([result])
    return {
        **beginning,
        "completed_at": int(time.time()) if status == COMPLETED else None,
        "status": status,
        "incomplete_details": None if status == COMPLETED else {"reason": "max_output_tokens"},
        "output": output.told(status),
        "usage": {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": 0},
            "output_tokens": counts.completion,
            "output_tokens_details": {"reasoning_tokens": order.thought_tokens(0, result)},
            "total_tokens": counts.prompt + counts.completion,
        },
        **order.summary([result]),
    }


def failed(beginning: Mapping[str, Any], output: Output, error: Exception) -> dict[str, Any]:
    """Return the response that `error` has ended, with its output so far."""
    answer = answer_for(error)
    told = answer.body["error"]
    if answer.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "invalid_prompt" if answer.status == 400 else "server_error"
    return {
        **beginning,
        "status": "failed",
        "error": {"code": code, "message": told["message"], "type": told["type"], "param": told["param"]},
        "output": output.told(INCOMPLETE),
    }


def status_of(result: Result) -> str:
    """Return the status of a response that has ended by itself, and of the last item in it."""
    return INCOMPLETE if result.finish_reason is FinishReason.LENGTH else COMPLETED


def _text_of(body: ResponsesBody) -> dict[str, Any]:
    text = body.text
    format = {"type": "text"} if text is None or text.format is None else text.format
    return {"format": format, "verbosity": None if text is None else text.verbosity}


def _reasoning_of(body: ResponsesBody) -> dict[str, Any]:
    reasoning = body.reasoning
    return {
        "effort": None if reasoning is None else reasoning.effort,
        "summary": None if reasoning is None else reasoning.summary,
    }


def _described(tool: FunctionTool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict is not False,
    }
