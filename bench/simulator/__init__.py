"""A simulator for scheduling: policies on simulated lanes, on a virtual clock.

`llamalane simulate` runs a workload through llamalane's own rules and through those of others, on the same lanes with
the same arrivals, and tells what each request would see: waits and times to first token by level, throughput, goodput,
fairness. `llamalane bench simulator` measures the simulator itself.

How it works
------------

*The deciding code is production's.* The queue with its fairness and aging, the admission policy, the displacement
policy, and each lane's ledger with its step-time model (which sets prefill budgets, lets rows sit out, and has steps
broken off) are imported from `llamalane.scheduler`. What is simulated is what they decide about: requests that are
lengths instead of tokens (`request`), the rows of a lane (`row`, `lane`), and who has which place (`seating`). A test
compares every moment of random workloads with production's scheduler and running sets, driven step by step.

*A lane* computes what `llamalane.streams.running_set` would, in steps. A step falls into passes over the weights as it
does in llama.cpp (`passes`): where each sequence has a part of the KV cells for itself, a prompt's chunk is a pass of
its own, and so are rows whose sequence ids have a gap before them. A pass takes a time for its tokens, and more for
each cell that they attend to (`speed`: measured points, interpolated; `calibration` measures them on a real lane). A
lane goes on by itself: a report is read when the next step is under way already, and an arrival joins at the end of the
step that it falls into. Only for the successor of a row that has ended does it wait. A lane that sleeps begins at once.

*Time skips ahead.* As long as nobody joins or leaves, and no prompt is computed, or the smallest chunks of one, all
steps are alike, but that each is longer than the one before by what more cells take, and that less urgent rows may sit
out every second one beside a prompt. A run of them (`equal_steps`) is computed at once, up to the end of the row that
ends first, or nearly to the end of the prompt; a plan that comes meanwhile cuts the run short, and there is none where
its steps could tell the scheduler something that changes its plan (`steadiness`). Time is counted in whole picoseconds,
so that this gives exactly what computing step by step gives, which a test checks. Nothing looks at all of many lanes.

*Against real runs* (`comparison`, `verdicts`): `--real` runs the same requests on a real engine, three times, and
compares the times to first token. A machine's speed drifts, so each run also tells how long llama.cpp took for its
steps, and the simulated machine is as slow as the real one was then, by one factor for all steps: the median of the
runs. What is compared is whether the same shapes of steps come, in the same order, for the same requests.

Limits
------

* A step's time does not depend on chance: a machine that stalls for a moment is slower on average.
* Attention takes as long for each cell, wherever it lies. Where sequences share their cells, what others' cells cost is
  in the measured times, as it was with the rows of the calibration.
* A sequence that came free last is taken last, whether or not it keeps cells that a prompt could use.
* KV cells never run short, a request reserves all that it will need, and copying cells to host memory takes no time.
  Only turns of the same conversation share a prefix.
* Outputs end at their known length: there are no stop strings, cancellations, deadlines, limits of tenants or
  failures.
* The scheduler itself takes no time but what a calibration measures between two steps.
* Where steps take about as long as the most urgent rows may wait for a token, and those with as many rows are not all
  as long (they grow with their sequences, and with gaps among the sequence ids), a run of
  steps may end before the scheduler hears that it should set rows aside, or let others join.
* Of two tenants' outputs, tokens are counted when a lane's rows change, not with every step.
* With many lanes, a request is offered one lane only, that with its conversation's cells or with most places free,
  instead of the one where it is likely to end first; and one of the youngest rows of a level gives way.
* Other policies differ in who gets a place and whose prompt comes first. Their lanes chunk prompts as ours do, which
  flatters those servers that do not.
"""

__all__: list[str] = []
