"""The command's options: which servers and loads they stand for, and which make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from llamalane.bench.peers.command import parse_urls
from llamalane.bench.peers.kinds import Arrivals, Peer, Setup, Traffic
from llamalane.bench.peers.plan import ComparisonPlan, Load
from llamalane.bench.peers.runs import Wanted, make_plan
from llamalane.cli import main
from llamalane.errors import ConfigError

SETUP = Setup(model=Path("model.gguf"), places=8, threads=2, cells=4096)


def plan(**options: object) -> ComparisonPlan:
    values: dict[str, object] = {
        "setup": SETUP,
        "peers": (Peer.LLAMALANE, Peer.XLLAMACPP),
        "llama_server": None,
        "examples_server": None,
        "urls": {},
        "traffic": Traffic.FRESH,
        "words": None,
        "tokens": None,
        "chat": False,
        "arrivals": Arrivals.CLOSED,
        "clients": (8, 32),
        "rates": (),
        "shares": (0.5, 1.0),
        "rounds": 2,
        "seconds": 5.0,
        "warm_up": 1.0,
        "slo_ttft": None,
        "slo_itl": None,
        "seed": 1,
        "busy_ok": True,
        **options,
    }
    return make_plan(Wanted(**values))  # type: ignore[arg-type]


def test_servers_are_those_that_were_named(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.touch()
    urls = parse_urls(["vllm=http://127.0.0.1:8000/v1", "ollama=http://host:11434/"])
    assert urls == {"vllm": "http://127.0.0.1:8000", "ollama": "http://host:11434"}
    programs = {"llama_server": script, "examples_server": script}
    names = [one.name for one in plan(peers=(Peer.THREAD_POOL,), **programs, urls=urls).contestants]
    assert names == ["thread-pool", "llama-server", "examples-server", "vllm", "ollama"]


def test_loads_are_clients_or_rates() -> None:
    assert plan().loads == (Load(Arrivals.CLOSED, 8), Load(Arrivals.CLOSED, 32))
    assert plan(arrivals=Arrivals.POISSON, rates=(1.5,)).loads == (Load(Arrivals.POISSON, 1.5),)
    saturating = plan(arrivals=Arrivals.POISSON)
    assert (saturating.loads, saturating.shares) == ((), (0.5, 1.0))


def test_an_objective_has_one_side_or_two() -> None:
    assert plan().objective is None
    objective = plan(slo_itl=0.2).objective
    assert objective is not None
    assert (objective.first_token, objective.inter_token) == (None, 0.2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://127.0.0.1:8000", "takes a name and an http URL"),
        ("=http://127.0.0.1:8000", "takes a name and an http URL"),
        ("vllm=https://host", "takes a name and an http URL"),
        ("vllm=host:80", "takes a name and an http URL"),
        ("llamalane=http://host", "is given twice, or is that of a peer"),
    ],
)
def test_urls_that_make_no_sense_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse_urls([text])
    with pytest.raises(ConfigError, match="given twice"):
        parse_urls(["a=http://host", "a=http://other"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"examples_server": Path("missing.py")}, "there is no file missing.py"),
        ({"peers": (Peer.EXAMPLES_SERVER,)}, "needs --examples-server PATH"),
        ({"llama_server": Path("missing")}, "--llama-server: there is no file missing"),
        ({"peers": (Peer.LLAMA_SERVER,)}, "needs --llama-server PATH"),
    ],
)
def test_servers_of_no_package_have_to_be_there(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan(**options)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rate", "2"], "--rate and --load are for --arrivals poisson"),
        (["--arrivals", "poisson", "--clients", "8"], "--clients is for --arrivals closed"),
        (["--arrivals", "poisson", "--rate", "2", "--load", "0.5"], "either --rate or --load"),
        (["--arrivals", "poisson", "--rate", "0"], "must be a number greater than 0; got 0"),
        (["--arrivals", "poisson", "--load", "nan"], "must be a number greater than 0; got nan"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: Sequence[str], why: str, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "peers", str(tiny_model), *arguments]) == 2
    assert why in capsys.readouterr().err
