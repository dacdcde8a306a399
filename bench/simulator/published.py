"""Workloads by name: the simulator's own, and the shapes of published traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llamalane.bench.simulator.conversations import Conversations
from llamalane.bench.simulator.gaps import POISSON, Gamma, OnOff, Process
from llamalane.bench.simulator.lengths import Between, Lengths, LogNormal, Quantiles, Zipf
from llamalane.bench.simulator.workload import Kind, Mix, Source
from llamalane.ids import Level

LEVEL_SHARES: Mapping[int, float] = {1: 0.2, 3: 0.4, 5: 0.4}
"""How many requests of a published trace get each level; the traces themselves know no priorities."""

_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """What can be chosen about every named workload: see `Mix`."""

    tenants: int = 1
    limit: int = 2048
    scale: float = 1.0


def poisson(options: WorkloadOptions) -> Source:
    """Return short interactive requests, normal ones, and long batch work, which come independently."""
    return _classes(POISSON, options)


def bursts(options: WorkloadOptions) -> Source:
    """Return the same requests in bursts: 10 s of arrivals, then 20 s of silence, on average."""
    return _classes(OnOff(on=10, off=20), options)


def burstgpt(options: WorkloadOptions, *, burstiness: float = 2.0) -> Source:
    """Return the shape of BurstGPT: Gamma-distributed gaps, prompts by Zipf's law, log-normal outputs.

    Wang et al., "BurstGPT: A Real-World Workload Dataset to Optimize LLM Serving Systems" (KDD 2025, arXiv:2401.17644)
    find that arrivals at an Azure OpenAI service are well modelled by Gamma-distributed gaps, burstier than a Poisson
    process by an amount that varies over the day, and prompt lengths by Zipf's law. The kinds of distribution are
    theirs; the numbers here are chosen, since burstiness and exponents differ between models, services and hours.
    """
    prompt = Zipf(exponent=1.6, shift=200.0, most=4096)
    output = LogNormal(median=180, sigma=0.8, most=2048)
    return _one_kind(Gamma(burstiness), prompt, output, options)


def azure_conversation(options: WorkloadOptions) -> Source:
    """Return the shape of Azure's conversation trace of 2023.

    Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting" (ISCA 2024), published 19,366
    requests of one hour. Their quantiles are given here: half of the prompts are shorter than 1,020 tokens, half of
    the outputs than 129. The gaps vary by 1.09 times their mean, which is almost a Poisson process.
    """
    prompt = (2, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315, 2734, 4083, 4142, 14050)
    output = (7, 41, 54, 77, 91, 103, 129, 177, 384, 400, 424, 451, 601, 1000)
    return _one_kind(Gamma(1.09), Quantiles(_SHARES, prompt), Quantiles(_SHARES, output), options)


def azure_code(options: WorkloadOptions) -> Source:
    """Return the shape of Azure's code completion trace of 2023: long prompts, short outputs, and long silences.

    The same publication has 8,819 requests of code completion within an hour; half of the prompts are shorter than
    1,469 tokens, half of the outputs than 13. Silences of more than 5 s take 43 s on average, and what lies between
    them 17 s.
    """
    prompt = (3, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3192, 5187, 7303, 7436, 7437)
    output = (6, 6, 7, 8, 9, 11, 13, 16, 20, 29, 55, 90, 251, 1899)
    return _one_kind(OnOff(on=17, off=43), Quantiles(_SHARES, prompt), Quantiles(_SHARES, output), options)


def chat(options: WorkloadOptions) -> Source:
    """Return conversations of several turns, with time to think between them."""
    return Conversations(limit=options.limit, scale=options.scale)


WORKLOADS: Mapping[str, Callable[[WorkloadOptions], Source]] = {
    "poisson": poisson,
    "bursts": bursts,
    "burstgpt": burstgpt,
    "azure-conversation": azure_conversation,
    "azure-code": azure_code,
    "chat": chat,
}


def _classes(process: Process, options: WorkloadOptions) -> Mix:
    kinds = (
        Kind(level=Level(1), share=0.2, prompt=Between(16, 96), output=Between(16, 64)),
        Kind(level=Level(3), share=0.3, prompt=Between(32, 256), output=Between(32, 128)),
        Kind(level=Level(5), share=0.5, prompt=Between(64, 512), output=Between(64, 256)),
    )
    return Mix(kinds=kinds, process=process, tenants=options.tenants, limit=options.limit, scale=options.scale)


def _one_kind(process: Process, prompt: Lengths, output: Lengths, options: WorkloadOptions) -> Mix:
    kinds = [
        Kind(level=Level(level), share=share, prompt=prompt, output=output) for level, share in LEVEL_SHARES.items()
    ]
    return Mix(kinds=kinds, process=process, tenants=options.tenants, limit=options.limit, scale=options.scale)
