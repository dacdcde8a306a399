"""Sampling options of `llamalane generate`: the most used of `SamplingParameters`."""

from __future__ import annotations

from typing import Annotated

import typer

MaxTokens = Annotated[
    int | None,
    typer.Option(help="The most tokens to generate.", metavar="N", show_default="until the sequence is full"),
]
Temperature = Annotated[float | None, typer.Option(help="0 always takes the likeliest token.", show_default="0.8")]
TopK = Annotated[
    int | None, typer.Option(help="Keep the K likeliest tokens; 0 keeps all.", metavar="K", show_default="40")
]
TopP = Annotated[
    float | None, typer.Option(help="Keep the likeliest tokens up to this probability.", show_default="0.95")
]
MinP = Annotated[
    float | None,
    typer.Option(help="Drop tokens less likely than this part of the likeliest.", show_default="0.05"),
]
RepeatPenalty = Annotated[float | None, typer.Option(help="Above 1 makes recent tokens less likely.", show_default="1")]
PresencePenalty = Annotated[
    float | None, typer.Option(help="From -2 to 2, for each token seen recently.", show_default="0")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="From -2 to 2, for each time a token was seen recently.", show_default="0")
]
Seed = Annotated[
    int | None, typer.Option(help="The same seed gives the same text.", metavar="N", show_default="random")
]
Stop = Annotated[list[str] | None, typer.Option(help="Text that ends the output; may be repeated.", metavar="TEXT")]
