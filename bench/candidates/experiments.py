"""Which experiment measures which candidate."""

from __future__ import annotations

from collections.abc import Mapping

from llamalane.bench.candidates import Candidate
from llamalane.bench.candidates.comparison import Experiment
from llamalane.bench.candidates.event_loop_process import EVENT_LOOP_PROCESS
from llamalane.bench.candidates.free_threading import FREE_THREADING
from llamalane.bench.candidates.graph_reuse import GRAPH_REUSE
from llamalane.bench.candidates.kv_types import KV_TYPES
from llamalane.bench.candidates.one_pass import ONE_PASS
from llamalane.bench.candidates.prompt_lookup import PROMPT_LOOKUP
from llamalane.bench.candidates.row_order import ROW_ORDER
from llamalane.bench.candidates.threads_sampling import THREADS_SAMPLING

EXPERIMENTS: Mapping[Candidate, Experiment] = {
    Candidate.THREADS_SAMPLING: THREADS_SAMPLING,
    Candidate.ROW_ORDER: ROW_ORDER,
    Candidate.GRAPH_REUSE: GRAPH_REUSE,
    Candidate.ONE_PASS: ONE_PASS,
    Candidate.KV_TYPES: KV_TYPES,
    Candidate.PROMPT_LOOKUP: PROMPT_LOOKUP,
    Candidate.EVENT_LOOP_PROCESS: EVENT_LOOP_PROCESS,
    Candidate.FREE_THREADING: FREE_THREADING,
}
