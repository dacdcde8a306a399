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

*A lane* computes what `llamalane.streams.running_set` would, in steps whose time depends on the decoding rows and the
prompt tokens in them (`speed`: measured points, interpolated; `calibration` measures them on a real lane). It goes on
by itself: a report is read when the next step is under way already, and an arrival joins at the end of the step that
it falls into. Only for the successor of a row that has ended does it wait. A lane that sleeps begins at once.

*Time skips ahead.* As long as no prompt is computed and nobody joins or leaves, all steps are alike, and a run of them
is computed at once, up to the end of the row that ends first; a plan that comes meanwhile cuts the run short. Time is
counted in whole nanoseconds, so that this gives exactly what computing step by step gives, which a test checks.
Nothing looks at all lanes, so that a million requests on a thousand lanes take minutes.

Limits
------

* A step's time does not depend on how long its sequences are, nor on chance.
* KV cells never run short, a request reserves all that it will need, and copying cells to host memory takes no time.
  Only turns of the same conversation share a prefix.
* Outputs end at their known length: there are no stop strings, cancellations, deadlines, limits of tenants or
  failures.
* The scheduler itself takes no time but what a calibration measures between two steps.
* Of two tenants' outputs, tokens are counted when a lane's rows change, not with every step.
* With many lanes, a request is offered the best lane only, and one of the youngest rows of a level gives way.
* Other policies differ in who gets a place and whose prompt comes first. Their lanes chunk prompts as ours do, which
  flatters those servers that do not.
"""

__all__: list[str] = []
